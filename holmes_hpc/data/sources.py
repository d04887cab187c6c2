"""One source of samples: a training and a validation part of tokens, and the kinds it can come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from holmes_hpc.config.pretrained import TOKENIZERS
from holmes_hpc.data import python_docs, token_file
from holmes_hpc.data.added import read_added
from holmes_hpc.data.cache import read_text
from holmes_hpc.data.cutting import Borders, Cutter, cutter
from holmes_hpc.data.flat import NPY_MAGIC, read_flat, read_npy
from holmes_hpc.data.megatron import MAGIC as MEGATRON_MAGIC
from holmes_hpc.data.megatron import MEGATRON, read_megatron
from holmes_hpc.data.settings import MADE_HERE, SourceSettings
from holmes_hpc.data.telling import Tell, silent
from holmes_hpc.data.token_types import capacity
from holmes_hpc.data.tokenizer import ByteTokenizer
from holmes_hpc.data.tokens import TokenArray, Tokens, crossing, file_size, read_bytes
from holmes_hpc.errors import ConfigurationError, DataError, TooFewTokensError
from holmes_hpc.paths import at_home, is_folder, is_there
from holmes_hpc.registry import SOURCES, unknown
from holmes_hpc.values.packings import INSIDE, WHOLE

_CHECKED_WINDOWS = 64
_CHECKED_TOKENS = 4096
_PADDING = 1024
"""A model's vocabulary may be larger than that of its data by this: tables are padded."""
_LEAST_WRAPPED = 1 << 15
"""Types of bytes are not judged by their largest token: text of bytes reaches the end of its type as well."""


@dataclass(frozen=True)
class Source:
    """A training and a validation part of tokens.

    `label` names it in messages. `vocab_size` and `tokenizer` are None where the data does not say; `notes` are what a
    user should be told of how its tokens were made. `packing` says how samples are cut (`packings.PACKINGS`);
    `documents` are the ends of all documents and `counted` what counts as a target, of both parts in one line, where
    they are known.
    """

    label: str
    training: TokenArray
    validation: TokenArray
    vocab_size: int | None = None
    tokenizer: bytes | None = None
    notes: tuple[str, ...] = ()
    packing: str = "causal"
    documents: TokenArray | None = None
    counted: TokenArray | None = None

    def cutters(self, sequence_length: int) -> tuple[Cutter, Cutter]:
        """Return what cuts samples out of the training and the validation part."""
        border = len(self.training)
        return self._cutter(self.training, 0, sequence_length), self._cutter(self.validation, border, sequence_length)

    def _cutter(self, tokens: TokenArray, begin: int, sequence_length: int) -> Cutter:
        end = begin + len(tokens)
        return cutter(tokens, sequence_length, self.packing,
                      None if self.documents is None else Borders(self.documents, begin, end),
                      None if self.counted is None else self.counted[begin:end])

    def check(self, sequence_length: int, vocab_size: int) -> None:
        """Refuse a part shorter than one sample, and tokens outside the vocabulary in windows of both parts.

        Raises DataError.
        """
        self.check_vocabulary_size(vocab_size)
        self.check_length(sequence_length)
        largest = 0
        for tokens in (self.training, self.validation):
            for window in _windows(tokens):
                self.check_vocabulary(window, vocab_size)
                largest = max(largest, int(window.max(initial=0)))
        self._check_capacity(largest, vocab_size)

    def doubts(self, vocab_size: int) -> Iterator[str]:
        """Yield what a user should be told of data that can be trained on, and may not be what was meant."""
        most = self._narrow(vocab_size)
        if most is not None:
            yield (f"{self.label} stores tokens in a type that ends at {most - 1}, and model.vocab_size={vocab_size}: "
                   f"tokens {most} and above never occur. If the data was made with so many, write it again in a wider "
                   f"type; if with fewer, model.vocab_size={most} would do.")
        if self.vocab_size is None:
            yield from self._blank()

    def _blank(self) -> Iterator[str]:
        """Say it where the tokens looked at are one and the same for long: nobody wrote them, or not to their end."""
        windows = [window for tokens in (self.training, self.validation) for window in _windows(tokens)]
        blank = [window for window in windows if len(window) == _CHECKED_TOKENS and window.min() == window.max()]
        if blank:
            where = ", to the very end" if blank[-1] is windows[-1] else ""
            yield (f"{self.label}: in {len(blank)} of {len(windows)} places that were looked at {_CHECKED_TOKENS} "
                   f"tokens in a row are all {int(blank[-1][0])}{where}. A file that was made as large as its tokens "
                   "would be, and whose writer was stopped, looks so; a model learns nothing else from it. Write it "
                   "again, unless that is meant.")

    def _narrow(self, vocab_size: int) -> int | None:
        """Return how many tokens the stored type tells apart where that is too few; None where the data says itself."""
        if self.vocab_size is not None:
            return None
        stored = numpy.asarray(self.training[0:0]).dtype
        most = capacity(stored) if stored.kind in "ui" else vocab_size
        return most if most + _PADDING < vocab_size else None

    def _check_capacity(self, largest: int, vocab_size: int) -> None:
        """Refuse tokens up to the very end of a type that is smaller than the vocabulary: larger ones were wrapped."""
        most = self._narrow(vocab_size)
        if most is not None and most >= _LEAST_WRAPPED and largest >= most - most // 64:
            raise DataError(
                f"{self.label} holds tokens up to {largest}, the end of the type that stores them ({most} tokens), and "
                f"model.vocab_size={vocab_size} has more: those above were cut to that type, and mean others now. "
                f"Write the data again in uint32, or set model.vocab_size={most} if its vocabulary ends there.")

    def check_vocabulary_size(self, vocab_size: int) -> None:
        """Refuse data whose vocabulary, where it is known, is larger than the model's. Raises DataError."""
        if self.vocab_size is not None and self.vocab_size > vocab_size:
            raise DataError(f"{self.label} was made with a vocabulary of {self.vocab_size} tokens, and "
                            f"model.vocab_size={vocab_size} has fewer. Set model.vocab_size to at least "
                            f"{self.vocab_size}.")

    def check_length(self, sequence_length: int) -> None:
        """Refuse a part shorter than one sample, or without a document to learn from. Raises DataError."""
        if self.packing in WHOLE:
            for part, cutter in zip(("training", "validation"), self.cutters(sequence_length), strict=True):
                if not cutter.choices:
                    raise TooFewTokensError(
                        f"{self.label} has no document of two tokens or more for {part}, and "
                        f"data.packing={self.packing} makes samples of whole documents. Use more of them, "
                        "or set data.validation_fraction to another value above 0, at most 0.5.")
            return
        count = len(self.training) + len(self.validation)
        if not count:
            raise DataError(f"{self.label} holds no tokens at all: it is empty. Use data with text or tokens in it.")
        for part, tokens in (("training", self.training), ("validation", self.validation)):
            if len(tokens) <= sequence_length:
                shorter = f"Set model.sequence_length to less than {len(tokens)}, use" if len(tokens) > 1 else "Use"
                raise TooFewTokensError(
                    f"{self.label} has {count} tokens, {len(tokens)} of them for {part}: one sample needs "
                    f"{sequence_length + 1}, the target of its last token included. {shorter} longer data, or set "
                    "data.validation_fraction to another value above 0, at most 0.5.")

    def check_vocabulary(self, tokens: NDArray[Any], vocab_size: int) -> None:
        """Refuse tokens outside the vocabulary. Raises DataError."""
        smallest, largest = int(tokens.min(initial=0)), int(tokens.max(initial=0))
        if smallest < 0:
            raise DataError(f"{self.label} holds the negative token {smallest}: it is damaged, or of another type. "
                            "Make it again.")
        if largest >= vocab_size:
            raise DataError(
                f"{self.label} holds token {largest}, and model.vocab_size={vocab_size} has tokens 0 to "
                f"{vocab_size - 1}: the data was made with a larger vocabulary, or data.dtype is wrong. Set "
                f"model.vocab_size to at least {largest + 1}, or data.dtype to another type.")

    def digest_parts(self) -> Iterator[bytes]:
        """Yield the size and windows of both parts: what a fingerprint of the source is made of."""
        for tokens in (self.training, self.validation):
            yield f"/{len(tokens)}/".encode()
            for window in _windows(tokens):
                yield window.tobytes()
        for known in (self.counted, self.documents if self.packing in INSIDE else None):
            if known is not None:
                yield f"/{len(known)}/".encode()
                for window in _windows(known):
                    yield window.tobytes()


def open_source(settings: SourceSettings, vocab_size: int, tell: Tell = silent) -> Source:
    """Open a source of any kind; `vocab_size` is the model's, and `tell` hears of what takes long.

    Raises ConfigurationError for an unknown kind or a missing setting, DataError for data that is missing or malformed.
    """
    if settings.kind == "python_docs":
        if vocab_size < python_docs.VOCAB_SIZE:
            raise ConfigurationError(
                f"{settings.label} has {python_docs.VOCAB_SIZE} tokens (bytes), and model.vocab_size={vocab_size} has "
                f"fewer. Set model.vocab_size to at least {python_docs.VOCAB_SIZE}, or data.name=tokens.")
        _refuse_tokenizer(settings)
        training, validation = python_docs.read_python_docs()
        return Source(settings.label, training, validation, python_docs.VOCAB_SIZE, ByteTokenizer.identity)
    if settings.kind in MADE_HERE:
        tokens = read_text(settings, vocab_size, tell)
    elif settings.kind in _READERS:
        tokens = _READERS[settings.kind](settings, vocab_size)
    elif settings.kind in SOURCES:
        tokens = read_added(settings, SOURCES[settings.kind])
    else:
        raise unknown(SOURCES, settings.kind, ("python_docs", *MADE_HERE, *_READERS))
    count = len(tokens.array)
    border = count - int(count * settings.validation_fraction)
    packing = settings.packing
    if border and packing in WHOLE and tokens.documents is not None:
        border = _end_near(tokens.documents, border)
    return Source(settings.label, tokens.array[:border], tokens.array[border:], tokens.vocab_size, tokens.tokenizer,
                  (*tokens.notes, *_crossing(settings, tokens)), packing, tokens.documents, tokens.counted)


def _refuse_tokenizer(settings: SourceSettings) -> None:
    """Refuse a tokenizer for text that is read as bytes, of which a model with that tokenizer would make nothing."""
    if settings.tokenizer is None:
        return
    place = at_home(settings.tokenizer, settings.key("tokenizer"))
    if is_folder(place) and not any(is_there(place / name) for name in TOKENIZERS):
        return  # of a published model without one
    raise ConfigurationError(
        f"{settings.label} is read as bytes, one a token, and {settings.key('tokenizer')}={settings.tokenizer} (by "
        "default that of model.from_pretrained) would play no part. Use data=text with data.path, which that tokenizer "
        f"makes tokens of; or set {settings.key('tokenizer')}=null, so that the model has bytes for tokens.")


def _end_near(documents: TokenArray, border: int) -> int:
    """Return the end of the document that holds the token before `border`; of the last one its begin."""
    ends = numpy.asarray(documents)
    index = int(numpy.searchsorted(ends, numpy.uint64(border)))
    return int(ends[min(index, max(len(ends) - 2, 0))])


def _crossing(settings: SourceSettings, tokens: Tokens) -> Iterator[str]:
    """Say what becomes of documents where the user did not."""
    if tokens.documents is None and settings.packing in INSIDE:
        yield (f"where documents end is not known, so {settings.key('packing')}={settings.packing} takes all of it for "
               "one document")
    elif tokens.documents is not None and len(tokens.documents) > 1 and settings.packing_unsaid and (
            settings.packing == "causal"):
        yield crossing(len(tokens.documents))


def _read_tokens(settings: SourceSettings, vocab_size: int) -> Tokens:
    """Read a token file with a header, a numpy array, or a flat file."""
    path = settings.required_path
    file_size(settings, path)
    begin = read_bytes(settings, path, 8)
    if path.suffix == token_file.SUFFIX or begin == token_file.MAGIC:
        return token_file.read_token_file(settings)
    if path.suffix == ".npy" or begin.startswith(NPY_MAGIC):
        return read_npy(settings)
    if path.suffix in (".bin", ".idx"):
        index = path.with_suffix(".idx")
        if index.is_file() and read_bytes(settings, index, 9) == MEGATRON_MAGIC:
            raise DataError(f"{settings.key('path')}={path} belongs to the index {index} of Megatron. Set "
                            f"{settings.key('name')}=megatron.")
    return read_flat(settings, vocab_size)


_READERS: dict[str, Callable[[SourceSettings, int], Tokens]] = {
    "tokens": _read_tokens,
    MEGATRON: read_megatron,
}


def check_tokenizers(sources: Iterable[Source]) -> None:
    """Refuse sources that are known to have unlike tokenizers: a token would mean two things. Raises DataError."""
    known = [source for source in sources if source.tokenizer is not None]
    for source in known[1:]:
        if source.tokenizer != known[0].tokenizer:
            raise DataError(f"{known[0].label} and {source.label} were made with unlike tokenizers, so a token means "
                            "one thing in the first and another in the second. Make both with one tokenizer.")


def _windows(tokens: TokenArray) -> Iterator[NDArray[Any]]:
    """Yield windows of tokens from the first to the last, evenly spread; they overlap where there are few."""
    last = max(len(tokens) - _CHECKED_TOKENS, 0)
    for window in range(_CHECKED_WINDOWS):
        offset = last * window // (_CHECKED_WINDOWS - 1)
        yield numpy.asarray(tokens[offset : offset + _CHECKED_TOKENS])
