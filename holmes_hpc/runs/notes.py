"""What the ranks of a job have to say to whoever follows it: lines in `logs/notes.log`."""

from __future__ import annotations

from contextlib import suppress

from holmes_hpc.runs.folder import RunFolder


def add_note(folder: RunFolder, text: str) -> None:
    """Add a line. A storage that refuses is no reason to end a run: then nobody hears it."""
    with suppress(OSError), folder.notes_path.open("a", encoding="utf-8") as file:
        file.write(" ".join(text.split()) + "\n")


class Notes:
    """Reads the notes of a run, each once."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder, self._seen = folder, 0

    def new(self) -> list[str]:
        """Return the whole lines that were added since the last call."""
        try:
            lines = self._folder.notes_path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
        except OSError:
            return []
        whole = [line.rstrip("\n") for line in lines if line.endswith("\n")]
        fresh, self._seen = whole[self._seen:], len(whole)
        return fresh
