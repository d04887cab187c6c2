"""Many files made into one token file by several processes: each makes parts, which a later try finds again."""

from __future__ import annotations

import hashlib
import multiprocessing
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from holmes_hpc.data.formats import WHOLE_FILE, Stretch, format_of
from holmes_hpc.data.recipes import recipe_of
from holmes_hpc.data.settings import SourceSettings
from holmes_hpc.data.text import text_files
from holmes_hpc.data.token_file import SUFFIX, TokenFileWriter, read_token_file
from holmes_hpc.data.tokens import readable
from holmes_hpc.errors import DataError
from holmes_hpc.foreign import ForeignError, read_text
from holmes_hpc.runs.private import own_folder, replace_file

_MOST_NOTES_BYTES = 1 << 20
_PART_BYTES = 64 << 20
"""Files of lines are divided at about so many bytes."""


@dataclass(frozen=True)
class Part:
    """A file, or a stretch of one, and the token file that is made of it."""

    settings: SourceSettings
    file: Path
    stretch: Stretch
    path: Path
    num_bytes: int


def parts_of(sources: Sequence[SourceSettings], folder: Path, part_bytes: int = _PART_BYTES) -> list[Part]:
    """Return the parts of all files, in their order; a part's name says all that its tokens depend on.

    Raises DataError where there is no file.
    """
    parts = []
    for settings in sources:
        recipe = recipe_of(settings)
        kind = repr((settings.kind, settings.format, settings.text_field, settings.messages_field,
                     settings.special_tokens, recipe.tokenizer.identity, recipe.words()))
        for file in text_files(settings):
            with readable(settings, file):
                state = file.stat()
            for stretch in _stretches(settings, file, state.st_size, part_bytes):
                words = f"{kind}/{file.absolute()}/{state.st_size}/{state.st_mtime_ns}/{stretch}"
                name = hashlib.sha256(words.encode()).hexdigest()[:32]
                size = (state.st_size if stretch.end is None else stretch.end) - stretch.begin
                parts.append(Part(settings, file, stretch, folder / (name + SUFFIX), size))
    return parts


def make_tokens(output: Path, sources: Sequence[SourceSettings], processes: int, tell: Callable[[int, int], None],
                part_bytes: int = _PART_BYTES) -> tuple[int, int, list[str]]:
    """Write the tokens of all sources into one file; return tokens, documents, and what a user should be told.

    Parts lie beside `output` until it is whole, so that a later call goes on where this one ended; where none is whole,
    nothing is left. `tell` hears of the bytes that are done and of all. Raises DataError for what cannot be used,
    OSError where the disk refuses.
    """
    folder = parts_folder(output)
    parts = parts_of(sources, folder, part_bytes)
    folder.parent.mkdir(parents=True, exist_ok=True)
    own_folder(folder)  # its name can be guessed
    try:
        found = _make_all(output, parts, processes, tell)
    except BaseException:
        with suppress(OSError):  # it keeps parts
            folder.rmdir()
        raise
    shutil.rmtree(folder, ignore_errors=True)
    return found


def parts_folder(output: Path) -> Path:
    """Return the folder beside a token file in which its parts lie until it is whole."""
    return output.with_name(f".{output.name}.parts")


def _make_all(output: Path, parts: Sequence[Part], processes: int, tell: Callable[[int, int], None]
              ) -> tuple[int, int, list[str]]:
    total, done = sum(part.num_bytes for part in parts), 0
    missing = []
    for part in parts:
        if part.path.exists():
            done += part.num_bytes
        else:
            missing.append(part)
    tell(done, total)
    for part in _made(missing, processes):
        done += part.num_bytes
        tell(done, total)
    notes = list(dict.fromkeys(line for part in parts for line in _notes(part)))
    tokens, documents = _join(output, parts, notes)
    return tokens, documents, notes


def _stretches(settings: SourceSettings, file: Path, size: int, part_bytes: int) -> Iterator[Stretch]:
    if format_of(settings, file) != "jsonl" or file.suffix == ".gz" or size <= part_bytes:
        yield WHOLE_FILE
        return
    for begin in range(0, size, part_bytes):
        yield Stretch(begin, min(begin + part_bytes, size))


def _made(parts: Sequence[Part], processes: int) -> Iterator[Part]:
    """Make parts, and yield each when it is made."""
    if processes == 1 or len(parts) < 2:
        for part in parts:
            _make(part)
            yield part
        return
    # Spawned, since the threads of a tokenizer do not survive a fork.
    with ProcessPoolExecutor(min(processes, len(parts)), multiprocessing.get_context("spawn")) as pool:
        futures: dict[Future[None], Part] = {pool.submit(_make, part): part for part in parts}
        try:
            for future in as_completed(futures):
                future.result()
                yield futures[future]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _make(part: Part) -> None:
    """Write one part; its file appears when it is whole, and what is to be said of it before."""
    recipe = recipe_of(part.settings)
    with TokenFileWriter(part.path, recipe.tokenizer.vocab_size, recipe.tokenizer.identity,
                         counts=recipe.counts) as writer:
        recipe.write(part.settings, part.file, writer, lambda count: None, part.stretch)
        replace_file(_said(part), "\n".join(recipe.notes(part.settings)))


def _notes(part: Part) -> list[str]:
    with suppress(ForeignError):
        return read_text(_said(part), _MOST_NOTES_BYTES).splitlines()
    return []


def _said(part: Part) -> Path:
    return part.path.with_suffix(".said")


def _join(output: Path, parts: Sequence[Part], notes: Sequence[str]) -> tuple[int, int]:
    """Write the tokens of all parts into one file, which appears unless it would be empty."""
    recipe, documents = recipe_of(parts[0].settings), 0
    made_with = recipe.tokenizer
    with TokenFileWriter(output, made_with.vocab_size, made_with.identity, counts=recipe.counts) as writer:
        for part in parts:
            tokens = read_token_file(replace(part.settings, path=str(part.path)))
            documents += 0 if tokens.documents is None else len(tokens.documents)
            writer.append(tokens)
        if not documents:
            for part in parts:  # of which no later call has any good
                part.path.unlink(missing_ok=True)
                _said(part).unlink(missing_ok=True)
            named = ", ".join(dict.fromkeys(str(part.settings.path) for part in parts))
            raise DataError(f"{named}: no document is in these files{''.join(f'; {note}' for note in notes)}. Name "
                            "files with text in them.")
    return writer.num_tokens, documents
