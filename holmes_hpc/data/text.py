"""Text files, and writing them as tokens."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Protocol

from holmes_hpc.data.encoding import check_text
from holmes_hpc.data.formats import WHOLE_FILE, Stretch, bad_row, format_of, rows
from holmes_hpc.data.settings import SourceSettings
from holmes_hpc.data.telling import Portion, Tell, silent
from holmes_hpc.data.token_file import TokenFileWriter
from holmes_hpc.data.tokenizer import Tokenizer, load_tokenizer
from holmes_hpc.data.tokens import nearby, readable
from holmes_hpc.errors import DataError
from holmes_hpc.foreign import open_regular
from holmes_hpc.words import counted

_PIECE_BYTES = 1 << 20
_MOST_NAMES = 5
_BLANKS = (b" ", b"\t", b"\r", b"\v", b"\f")
_LONGEST_CHARACTER_BYTES = 4


def text_files(settings: SourceSettings) -> list[Path]:
    """Return the files of a folder whose names match `data.pattern`, sorted by path; or the one file.

    Hidden files and folders are left out. Raises DataError where there is none.
    """
    root = settings.required_path
    with readable(settings, root):
        if root.is_file():
            return [root]
        if not root.is_dir():
            raise DataError(f"{settings.key('path')}={root} is no folder{nearby(root)}. Set {settings.key('path')} to "
                            "a folder of text that every node can read.")
        others, found = 0, []
        for folder, folders, names in os.walk(root, onerror=_raise, followlinks=True):
            folders[:] = [name for name in folders if not name.startswith(".")]
            for name in names:
                if name.startswith("."):
                    continue
                if fnmatch(name, settings.pattern):
                    found.append(Path(folder, name))
                else:
                    others += 1
    if not found and not others:
        raise DataError(f"{settings.key('path')}={root} is a folder without any file (hidden ones are left out). Set "
                        f"{settings.key('path')} to the folder that the text lies in.")
    if not found:
        raise DataError(f"{settings.key('path')}={root} has {counted(others, 'file')}, and none that matches "
                        f"{settings.key('pattern')}={settings.pattern}. Set {settings.key('pattern')} to the names of "
                        "the text files, such as '*.md'.")
    return sorted(found, key=lambda path: path.relative_to(root).parts)


class Recipe(Protocol):
    """How files become documents of tokens."""

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer."""

    @property
    def counts(self) -> bool:
        """Tell whether tokens say if they count as targets."""

    def words(self) -> tuple[object, ...]:
        """Return what the tokens depend on beside the files and the tokenizer."""

    def write(self, settings: SourceSettings, file: Path, writer: TokenFileWriter, advance: Callable[[int], None],
              stretch: Stretch = WHOLE_FILE) -> None:
        """Write the documents of a file, or of a stretch of its rows; `advance` hears of the bytes that are done.

        Raises DataError for a file or row that cannot be used.
        """

    def notes(self, settings: SourceSettings) -> list[str]:
        """Return what a user should be told of the documents written so far."""


class TextRecipe:
    """Every file a document; of files of rows every row, by its field `data.text_field`."""

    counts = False

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def words(self) -> tuple[object, ...]:
        """Return what the tokens depend on beside the files and the tokenizer."""
        return tuple(tuple(each.tolist()) for each in (self.tokenizer.before, self.tokenizer.after))

    def write(self, settings: SourceSettings, file: Path, writer: TokenFileWriter, advance: Callable[[int], None],
              stretch: Stretch = WHOLE_FILE) -> None:
        """Write the documents of a file, or of a stretch of its rows. Raises DataError as the protocol says."""
        if format_of(settings, file) == "plain":
            try:
                self._document(_pieces(settings, file, self.tokenizer), writer, advance)
            except UnicodeDecodeError as error:
                raise DataError(f"{settings.key('path')}={settings.path}: {file} is not UTF-8 at byte {error.start}. "
                                f"Convert it, leave it out with {settings.key('pattern')}, or use no tokenizer: then "
                                "bytes are read as they are.") from error
            return
        field = settings.text_field
        for row in rows(settings, file, stretch):
            text = row.value.get(field)
            if not isinstance(text, str):
                names = ", ".join(map(str, row.value)) or "none"
                what = "no text" if field in row.value else f"nothing (its fields: {names})"
                raise bad_row(settings, row, f"has {what} in {settings.key('text_field')}={field}")
            try:
                self._document(_pieces_of(io.BytesIO(text.encode()), self.tokenizer), writer)
            except UnicodeEncodeError as error:
                raise bad_row(settings, row, f"has half a character (a lone surrogate) at {error.start}") from error
            advance(row.num_bytes)

    def notes(self, settings: SourceSettings) -> list[str]:
        """Return what a user should be told of the documents written so far."""
        said = spelled_in_words(self.tokenizer, settings.special_tokens, settings.key("special_tokens"))
        return [said] if said else []

    def _document(self, pieces: Iterable[bytes], writer: TokenFileWriter,
                  advance: Callable[[int], None] = lambda count: None) -> None:
        writer.write(self.tokenizer.before)
        begin = 0
        for piece in pieces:
            try:
                writer.write(self.tokenizer.encode(piece))
            except UnicodeDecodeError as error:
                error.start += begin
                raise
            begin += len(piece)
            advance(len(piece))
        writer.write(self.tokenizer.after)
        writer.end_document()


def tokenizer_of(settings: SourceSettings) -> Tokenizer:
    """Return the tokenizer that a source's settings name. Raises as `load_tokenizer` does."""
    return load_tokenizer(settings.tokenizer, settings.end_of_document, settings.key("tokenizer"),
                          settings.key("end_of_document"), control=settings.special_tokens == "control",
                          around=settings.add_special_tokens)


def tokenise(settings: SourceSettings, files: Sequence[Path], recipe: Recipe, writer: TokenFileWriter,
             tell: Tell = silent) -> None:
    """Write the tokens of files, and tell how far that is.

    Raises DataError for a file that cannot be read or is not UTF-8, and for a row that cannot be used.
    """
    portion = Portion(tell, "tokenising data", size_of(settings, files), str(settings.path))
    for file in files:
        recipe.write(settings, file, writer, portion.add)


def size_of(settings: SourceSettings, files: Sequence[Path]) -> int:
    """Return how many bytes files have. Raises DataError for one that cannot be looked at."""
    with readable(settings, settings.required_path):
        return sum(file.stat().st_size for file in files)


def spelled_in_words(tokenizer: Tokenizer, became: str, key: str) -> str:
    """Say how often texts spelled special tokens and what that became, `text` or `control` by the setting `key`."""
    if not tokenizer.spelled:
        return ""
    commonest = tokenizer.spelled.most_common(_MOST_NAMES)
    counts = ", ".join(f"{token} {counted(count, 'time')}" for token, count in commonest)
    more = len(tokenizer.spelled) - _MOST_NAMES
    counts += f" and {more} others" if more > 0 else ""
    other = "control" if became == "text" else "text"
    what = "were read as text" if became == "text" else "became those tokens"
    return f"the text spells special tokens ({counts}), which {what}; {key}={other} takes it the other way"


def _pieces(settings: SourceSettings, file: Path, tokenizer: Tokenizer) -> Iterator[bytes]:
    """Yield a file in pieces of about a MiB, which bounds the memory a tokenizer takes.

    They end at line ends, but in a line that goes on for another MiB before the last word, which takes its blank along
    as tokenizers expect; a word of that length is cut.
    """
    with readable(settings, file), open_regular(file) as stream:
        at = 0
        for piece in _pieces_of(stream, tokenizer):
            check_text(settings, file, piece, at)
            at += len(piece)
            yield piece


def _pieces_of(stream: IO[bytes], tokenizer: Tokenizer) -> Iterator[bytes]:
    rest = b""
    while piece := rest + stream.read(max(0, _PIECE_BYTES - len(rest))):
        rest = b""
        if len(piece) >= _PIECE_BYTES and not piece.endswith(b"\n"):
            line = stream.readline(_PIECE_BYTES)
            piece += line
            if len(line) == _PIECE_BYTES and not line.endswith(b"\n"):
                cut = tokenizer.outside_special(piece, _cut(piece, len(piece) - tokenizer.longest_special_bytes))
                piece, rest = piece[:cut], piece[cut:]
        yield piece


def _cut(text: bytes, end: int) -> int:
    """Return where to cut a text at `end` or before: before the last blank of its second half, else a character."""
    blank = max(text.rfind(each, len(text) // 2, end) for each in _BLANKS)
    if blank > 0:
        return blank
    last = end - 1
    while last > end - _LONGEST_CHARACTER_BYTES and text[last] & 0xC0 == 0x80:
        last -= 1
    return last


def _raise(error: OSError) -> None:
    raise error
