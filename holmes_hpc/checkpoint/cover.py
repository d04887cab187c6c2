"""The beginnings of files that a checkpoint's index vouches for: headers of data files, and texts whole. No torch."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from holmes_hpc.errors import CheckpointError
from holmes_hpc.foreign import open_regular, whole_number

_LARGEST_BYTES = 2**32


@dataclass(frozen=True)
class Cover:
    """The first `length` bytes of a file: their CRC-32, and their SHA-256 where the checkpoint has such."""

    length: int
    checksum: int
    sha256: str = ""

    @classmethod
    def of(cls, data: bytes, *, hashed: bool) -> Cover:
        """Return the cover of all of `data`."""
        return cls(len(data), zlib.crc32(data), hashlib.sha256(data).hexdigest() if hashed else "")

    def check(self, data: bytes, name: str) -> None:
        """Raise CheckpointError where the beginning of the file called `name` is not `data`."""
        found = Cover.of(data, hashed=bool(self.sha256))
        if found.length != self.length:
            raise CheckpointError(f"it is torn: {name} ends after {found.length:,} of {self.length:,} bytes")
        if found != self:
            raise CheckpointError(f"it is damaged: the first {self.length:,} bytes of {name} do not have their "
                                  "checksum")


def pack_covers(covers: Mapping[str, Cover]) -> dict[str, list[Any]]:
    """Return covers for JSON, by the names of their files."""
    return {name: list(astuple(cover)) for name, cover in covers.items()}


def unpack_covers(rows: Any) -> dict[str, Cover]:
    """Return the covers of `pack_covers`. Raises CheckpointError where one is none."""
    if not isinstance(rows, dict) or not all(_is_cover(row) for row in rows.values()):
        raise CheckpointError("it is foreign: its index lists something else than checksums of files")
    return {name: Cover(*row) for name, row in rows.items()}


def check_file(folder: Path, name: str, cover: Cover) -> None:
    """Read the beginning of a file and hold it against its cover. Raises CheckpointError."""
    try:
        with open_regular(folder / name) as file:
            cover.check(file.read(cover.length), name)
    except OSError as error:
        raise CheckpointError(f"{name} cannot be read: {error.strerror or error}") from error


def _is_cover(row: Any) -> bool:
    if not isinstance(row, list) or len(row) != 3:
        return False
    length, checksum, sha256 = row
    return (whole_number(length, most=_LARGEST_BYTES) is not None and whole_number(checksum) is not None
            and isinstance(sha256, str))
