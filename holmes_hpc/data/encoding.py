"""Whether a file of text is text: UTF-16, archives and torn files train without an error, on their null bytes."""

from __future__ import annotations

from pathlib import Path

from holmes_hpc.data.magics import format_words
from holmes_hpc.data.settings import SourceSettings
from holmes_hpc.errors import DataError

BEGIN_BYTES = 4096
_MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
_WIDE_SHARE = 0.3
"""The least share of null bytes in UTF-16: about a half in Latin script."""
_WIDEST_SHARE = 0.6
"""The same in UTF-32: every second and third byte at least."""


def check_text(settings: SourceSettings, file: Path, piece: bytes, at: int = 0) -> None:
    """Refuse a piece of a file, from its byte `at` on, that is no text in UTF-8 or another encoding of single bytes.

    Raises DataError with what the file is.
    """
    encoding = None if at else next((name for mark, name in _MARKS.items() if piece.startswith(mark)), None)
    if encoding is None and b"\0" not in piece:
        return
    zeros = piece.count(b"\0")
    what = None if at or encoding else format_words(piece)
    if encoding is None and what is None and _WIDE_SHARE < zeros / len(piece) < 1:
        encoding = _wide(piece)
    where = f"{settings.key('path')}={settings.path}: {file}"
    pattern = settings.key("pattern")
    if encoding:
        raise DataError(f"{where} is {encoding}, whose null bytes would be trained on. Convert it (iconv -f {encoding} "
                        f"-t UTF-8), or leave it out with {pattern}.")
    first = at + piece.index(0)
    fact = (f"is {what}, and no text" if what else
            f"has a null byte at {first} ({zeros} of {len(piece)} bytes there), which no text has: it is binary, or "
            "its writer was stopped")
    raise DataError(f"{where} {fact}. Unpack or convert it, leave it out with {pattern}, or train on bytes of any "
                    f"content with {settings.key('name')}=tokens and {settings.key('dtype')}=uint8.")


def _wide(piece: bytes) -> str | None:
    """Return the encoding of text whose characters take two or four bytes, by where its null bytes are."""
    width, name = (4, "UTF-32") if piece.count(b"\0") > _WIDEST_SHARE * len(piece) else (2, "UTF-16")
    low, high = piece[0::width], piece[width - 1::width]
    for order, upper, lower in (("LE", high, low), ("BE", low, high)):
        if upper.count(b"\0") > len(upper) / 2 and lower.count(b"\0") < len(lower) / 10:
            return name + order
    return None
