"""From text to tokens: by a file of the package `tokenizers`, or one for each byte."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy
from numpy.typing import NDArray

from holmes_hpc.errors import ConfigurationError, DataError
from holmes_hpc.foreign import ForeignError, read_bytes
from holmes_hpc.paths import at_home, is_folder

TOKENIZER_FILE = "tokenizer.json"
"""A tokenizer's file in the folder of a published model."""


class Tokenizer(ABC):
    """A tokenizer: its identity (16 bytes that equal tokenizers share), its vocabulary, and its end of a document."""

    identity: bytes
    vocab_size: int
    end_of_document: int | None
    longest_special_bytes: int = 0
    before: NDArray[Any] = numpy.empty(0, dtype=numpy.uint32)
    """what stands before every document"""
    after: NDArray[Any] = numpy.empty(0, dtype=numpy.uint32)
    """what ends every document"""

    def __init__(self) -> None:
        """Begin to count."""
        self.spelled: Counter[str] = Counter()
        """how often the texts encoded so far spelled each special token"""

    @abstractmethod
    def encode(self, text: bytes) -> NDArray[Any]:
        """Return the tokens of a text. Raises UnicodeDecodeError where characters are read and it is not UTF-8."""

    def outside_special(self, text: bytes, cut: int) -> int:
        """Return `cut`, or where the special token begins that the text spells across that place."""
        return cut

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, special ones left out."""


class ByteTokenizer(Tokenizer):
    """One token for each byte."""

    identity = hashlib.sha256(b"bytes").digest()[:16]
    vocab_size = 256
    end_of_document = None

    def encode(self, text: bytes) -> NDArray[Any]:
        """Return the bytes."""
        return numpy.frombuffer(text, dtype=numpy.uint8)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of bytes; what is no UTF-8 is marked."""
        return bytes(ids).decode("utf-8", errors="replace")


class FileTokenizer(Tokenizer):
    """The tokenizer of a file, which adds nothing and leaves nothing out of a text.

    A text that spells a special token, such as `<|endoftext|>` in a page about it, is text like any other, unless
    `control` is true: then it becomes that token.
    """

    def __init__(self, tokenizer: Any, content: bytes, end_of_document: str | None, *, control: bool = False,
                 around: bool = False) -> None:
        """Take the loaded tokenizer, the bytes of its file and the token that ends a document, which it has.

        `around`: what the file says should stand around a text stands around every document, once.
        """
        super().__init__()
        # A file may carry settings that would cut texts off, or fill them up.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.end_of_document = None if end_of_document is None else tokenizer.token_to_id(end_of_document)
        self.vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if end_of_document is not None:
            tokenizer.add_special_tokens([end_of_document])  # where the file has it as an ordinary one
        tokenizer.encode_special_tokens = not control
        self._tokenizer, self._control = tokenizer, control
        self._numbers = {token.content: number for number, token in tokenizer.get_added_tokens_decoder().items()
                         if token.special and len(token.content) > 1}
        longest_first = sorted(self._numbers, key=len, reverse=True)
        self.longest_special_bytes = max((len(name.encode()) for name in self._numbers), default=0)
        pattern = "|".join(map(re.escape, longest_first))
        self._spelled = re.compile(pattern) if pattern else None
        self._spelled_bytes = re.compile(pattern.encode()) if pattern else None
        self.identity = hashlib.sha256(content).digest()[:16]
        before, after = self._around() if around else ([], [])
        if self.end_of_document is not None and after[-1:] != [self.end_of_document]:
            after = [*after, self.end_of_document]
        self.before, self.after = numpy.array(before, numpy.uint32), numpy.array(after, numpy.uint32)

    @property
    def special(self) -> tuple[str, ...]:
        """The special tokens' spellings, longer ones first."""
        return tuple(sorted(self._numbers, key=len, reverse=True))

    def encode_control(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the tokens of a text whose special tokens are meant as such, and the characters of each."""
        self._tokenizer.encode_special_tokens = False
        try:
            found = self._tokenizer.encode(text, add_special_tokens=False)
        finally:
            self._tokenizer.encode_special_tokens = not self._control
        return found.ids, found.offsets

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, special ones left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def _around(self) -> tuple[list[int], list[int]]:
        """Return what the file's post-processor puts before and behind a text."""
        plain, full = (self._tokenizer.encode("a", add_special_tokens=each).ids for each in (False, True))
        for begin in range(len(full) - len(plain) + 1):
            if full[begin:begin + len(plain)] == plain:
                return full[:begin], full[begin + len(plain):]
        return [], []

    def encode(self, text: bytes) -> NDArray[Any]:
        """Return the tokens, without special tokens at the ends; count those that the text spells."""
        words = text.decode("utf-8")
        ids = self._ids(words)
        found = list(self._spelled.finditer(words)) if self._spelled else []
        if found:
            self.spelled.update(match[0] for match in found)
            if not self._control and not {self._numbers[match[0]] for match in found}.isdisjoint(ids):
                # Some models (Unigram) know special tokens as pieces of text: cut those after their first character.
                cuts = [0, *(match.start() + 1 for match in found), len(words)]
                ids = [number for begin, end in pairwise(cuts) for number in self._ids(words[begin:end])]
        return numpy.asarray(ids, dtype=numpy.uint32)

    def outside_special(self, text: bytes, cut: int) -> int:
        """Return `cut`, or where the special token begins that the text spells across that place."""
        reach = self.longest_special_bytes
        near = self._spelled_bytes.finditer(text, max(0, cut - reach), cut + reach) if self._spelled_bytes else ()
        return next((match.start() for match in near if match.start() < cut < match.end()), cut)

    def _ids(self, words: str) -> list[int]:
        return self._tokenizer.encode(words, add_special_tokens=False).ids


def load_tokenizer(path: str | None, end_of_document: str | None = None, key: str = "data.tokenizer",
                   end_key: str = "data.end_of_document", *, control: bool = False,
                   around: bool | None = None) -> Tokenizer:
    """Return the tokenizer of a file or of a model's folder, or that of bytes where `path` is None.

    `key` and `end_key` are the settings that messages name; `control`: special tokens that a text spells become those
    tokens; `around`: what the file puts around a text stands around every document, None: where a folder is named, as
    the model was then trained so. Raises ConfigurationError when the package `tokenizers` is
    missing or the end of a document is no token, DataError for a file that is missing or no tokenizer.
    """
    if path is None:
        if end_of_document is not None:
            raise ConfigurationError(f"{end_key}={end_of_document} needs {key}: without one a token is a byte, and "
                                     f"none is left to end a document. Set {key}, or leave {end_key} out.")
        return ByteTokenizer()
    file = at_home(path, key)
    if around is None:
        around = is_folder(file)
    if is_folder(file):
        file /= TOKENIZER_FILE
        if not os.path.lexists(file):
            raise DataError(f"{key}={path} cannot be read: the folder has no {TOKENIZER_FILE}. Copy that file of the "
                            f"model there, or set {key} to a tokenizer file that every node can read; by default it "
                            "is that of model.from_pretrained.")
    try:
        content = read_bytes(file)
    except ForeignError as error:
        why = str(error).removeprefix(str(file)).removeprefix(" cannot be read").removeprefix(":").strip()
        raise DataError(f"{key}={path} cannot be read: {why}. Set {key} to a tokenizer file "
                        "(tokenizer.json) that every node can read.") from error
    try:
        package = importlib.import_module("tokenizers")
    except ImportError as error:
        raise ConfigurationError(f"{key}={path} needs the package `tokenizers`, which is not installed. Run pip "
                                 f"install tokenizers, or leave {key} out: then one byte is one token.") from error
    try:
        tokenizer = package.Tokenizer.from_str(content.decode("utf-8"))
    except Exception as error:  # the package raises nothing more precise
        raise DataError(f"{key}={path} is no tokenizer of the package `tokenizers`: {error}. Save one with its "
                        "Tokenizer.save, or take the tokenizer.json of a published model.") from error
    if end_of_document is not None and tokenizer.token_to_id(end_of_document) is None:
        raise ConfigurationError(f"{end_key}={end_of_document} is no token of {key}={path}. Set {end_key} to one of "
                                 "its tokens, such as <|endoftext|> or </s>, or leave it out.")
    if not hasattr(tokenizer, "encode_special_tokens"):
        raise ConfigurationError(f"{key}={path} needs the package `tokenizers` from 0.19, as older ones make tokens of "
                                 "every text that spells a special one. Run pip install -U tokenizers.")
    return FileTokenizer(tokenizer, content, end_of_document, control=control, around=around)
