"""Text made into tokens once: token files in a folder, named by the content and the tokenizer that they come from."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from holmes_hpc.data.recipes import recipe_of
from holmes_hpc.data.settings import SourceSettings
from holmes_hpc.data.telling import Portion, Tell, read_words, silent, write_words
from holmes_hpc.data.text import Recipe, size_of, text_files, tokenise
from holmes_hpc.data.token_file import SUFFIX, TokenFileWriter, read_token_file
from holmes_hpc.data.tokens import Tokens, readable
from holmes_hpc.errors import DataError
from holmes_hpc.foreign import ForeignError, open_regular
from holmes_hpc.foreign import read_text as bounded_text
from holmes_hpc.runs.private import replace_file
from holmes_hpc.values.doing import AWAITING_DATA
from holmes_hpc.words import counted

_LOG = logging.getLogger(__name__)
# Part of every name: raise it when the same text and tokenizer would give other tokens.
_RECIPE = 2
_ABANDONED_SECONDS = 24 * 3600
_CHUNK_BYTES = 1 << 22
_SPELLED = ".spelled"
_LOCK_POLL_SECONDS = 0.1
_DIGEST = re.compile("[0-9a-f]{64}")
_MOST_RECORD_BYTES, _MOST_NOTES_BYTES = 1 << 10, 1 << 20


def read_text(settings: SourceSettings, vocab_size: int, tell: Tell = silent) -> Tokens:
    """Return the tokens of a folder of text or of conversations, from the cache or after putting them there.

    Of the processes that need the same tokens one makes them and the others wait; where the file system has no locks
    each makes them, and the last puts the same content in place of the others'. `tell` hears how far that is, of
    those that wait as well. Raises ConfigurationError when the package `tokenizers` is missing; DataError for a model
    with too small a vocabulary, text that is missing, unreadable or not UTF-8, and a cache that cannot be written.
    """
    recipe = recipe_of(settings)
    tokenizer = recipe.tokenizer
    if tokenizer.vocab_size > vocab_size:
        raise DataError(f"{settings.label} is read with a tokenizer of {tokenizer.vocab_size} tokens, and "
                        f"model.vocab_size={vocab_size} has fewer. Set model.vocab_size to at least "
                        f"{tokenizer.vocab_size}.")
    files = text_files(settings)
    with _writable(settings.cache):
        settings.cache.mkdir(parents=True, exist_ok=True)
        listing = _listing(settings, files)
        with _lock(settings.cache / f"{listing}.lock", tell) as heard:
            content = _content(settings, files, settings.cache / f"{listing}.content", heard)
            name = _digest(_RECIPE, content, tokenizer.identity.hex(), tokenizer.end_of_document,
                           settings.special_tokens, *recipe.words())
            return _tokens(settings, files, recipe, settings.cache / (name + SUFFIX), heard)


def _tokens(settings: SourceSettings, files: Sequence[Path], recipe: Recipe, path: Path, tell: Tell) -> Tokens:
    """Return the tokens that `path` keeps; make it first where it is missing or damaged."""
    cached = replace(settings, path=str(path))
    if path.exists():
        try:
            return replace(read_token_file(cached), notes=_notes(path))
        except DataError as error:
            _LOG.warning("making the cached tokens again: %s", error)
    _remove_abandoned(path)
    _LOG.info("making the tokens of %s of %s: %s", counted(len(files), "file"), settings.path, path)
    tokenizer = recipe.tokenizer
    with TokenFileWriter(path, tokenizer.vocab_size, tokenizer.identity, counts=recipe.counts) as writer:
        tokenise(settings, files, recipe, writer, tell)
        if recipe.counts and not writer.num_tokens:
            raise DataError(f"{settings.label} has no conversation to learn from: "
                            f"{'; '.join(recipe.notes(settings)) or 'its files are empty'}. Name files with others.")
    # Kept beside the tokens, as whoever makes them is not the rank that speaks, and later runs only read them.
    replace_file(path.with_suffix(_SPELLED), "\n".join(recipe.notes(settings)))
    return replace(read_token_file(cached), notes=_notes(path))


def _notes(path: Path) -> tuple[str, ...]:
    """Return what was said when the tokens at `path` were made."""
    with suppress(ForeignError):
        return tuple(bounded_text(path.with_suffix(_SPELLED), _MOST_NOTES_BYTES).splitlines())
    return ()


def _listing(settings: SourceSettings, files: Sequence[Path]) -> str:
    """Return a digest of what a listing tells about the files: when it is the same, so is their content."""
    with readable(settings, settings.required_path):
        states = [(str(file), (state := file.stat()).st_size, state.st_mtime_ns) for file in files]
    return _digest(states)


def _content(settings: SourceSettings, files: Sequence[Path], record: Path, tell: Tell) -> str:
    """Return a digest of the files' content, which `record` keeps: large data is not read at every start."""
    with suppress(ForeignError):
        if _DIGEST.fullmatch(known := bounded_text(record, _MOST_RECORD_BYTES)):
            return known
    digest = hashlib.sha256()
    portion = Portion(tell, "reading data", size_of(settings, files), str(settings.path))
    for file in files:
        with readable(settings, file), open_regular(file) as stream:
            inner = hashlib.sha256()
            while chunk := stream.read(_CHUNK_BYTES):
                inner.update(chunk)
                portion.add(len(chunk))
        digest.update(inner.digest())
    replace_file(record, digest.hexdigest())
    return digest.hexdigest()


def _digest(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:32]


@contextmanager
def _lock(path: Path, tell: Tell) -> Iterator[Tell]:
    """Hold a lock that ends with the process; go on without it where the file system has none.

    Yields what takes how far the work is: `tell` hears of it, and so does that of each process that waits for the lock.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o664)

    def heard(words: str) -> None:
        tell(words)
        with suppress(OSError):
            write_words(descriptor, words)

    try:
        _take_lock(descriptor, tell)
        yield heard
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int, tell: Tell) -> None:
    """Wait for a lock, and tell meanwhile what its holder says of its work."""
    told = None
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            words = read_words(descriptor)
            if words != told:
                told = words
                tell(f"{AWAITING_DATA}, which another process makes ready" + (f": {words}" if words else ""))
            time.sleep(_LOCK_POLL_SECONDS)
            continue
        except OSError:
            pass  # a file system without locks
        return


def _remove_abandoned(path: Path) -> None:
    """Remove what processes that died left of earlier tries."""
    for file in path.parent.glob(f".{path.name}.*.tmp"):
        with suppress(FileNotFoundError):
            if time.time() - file.stat().st_mtime > _ABANDONED_SECONDS:
                file.unlink()


@contextmanager
def _writable(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"data.cache={cache} cannot be written: {error.strerror or error}. Set data.cache to a folder "
                        "that you may write and that has room for the tokens.") from error
