"""What the ranks of a job have to say to whoever follows it: lines in `logs/notes.log`."""

from __future__ import annotations

from contextlib import suppress

from holmes_hpc.redaction import redact
from holmes_hpc.runs.folder import RunFolder
from holmes_hpc.runs.growing import GrowingFile


def add_note(folder: RunFolder, text: str) -> None:
    """Add a line. A storage that refuses is no reason to end a run: then nobody hears it."""
    with suppress(OSError), folder.notes_path.open("a", encoding="utf-8") as file:
        file.write(redact(" ".join(text.split())) + "\n")


class Notes:
    """Reads the notes of a run, each once."""

    def __init__(self, folder: RunFolder) -> None:
        self._file = GrowingFile(folder.notes_path)

    def new(self) -> list[str]:
        """Return the whole lines that were added since the last call."""
        return [line.decode(errors="replace") for line in self._file.new_lines()]
