"""Which run a checkpoint is of: a random word that lies in the run's folder, and in every checkpoint that it writes.

A folder's name or place would not do: people rename folders, and copy or move them as a whole, their word with them.
"""

from __future__ import annotations

import re
import secrets
from contextlib import suppress

from holmes_hpc.errors import HolmesError
from holmes_hpc.foreign import ForeignError, read_text
from holmes_hpc.runs.folder import RunFolder

_NAME = "identity"
_WORD = re.compile(r"[0-9a-f]{16}")


def identity(folder: RunFolder) -> str | None:
    """Return the word of a run; None where it has none, as before its first start that could save."""
    try:
        text = read_text(folder.path / _NAME, most_bytes=64).strip()
    except ForeignError:
        return None
    return text if _WORD.fullmatch(text) else None


def make_identity(folder: RunFolder) -> str | None:
    """Return the word of a run, which is made where it has none; None where the folder cannot be written."""
    found = identity(folder)
    if found is None:
        with suppress(HolmesError):
            folder.write_text(folder.path / _NAME, f"{secrets.token_hex(8)}\n")
            found = identity(folder)
    return found
