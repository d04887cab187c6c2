"""From text to tokens: by a file of the package `tokenizers`, or one for each byte."""

from __future__ import annotations

import hashlib
import importlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from holmes_hpc.errors import ConfigurationError, DataError


class Tokenizer(ABC):
    """A tokenizer: its identity (16 bytes that equal tokenizers share), its vocabulary, and its end of a document."""

    identity: bytes
    vocab_size: int
    end_of_document: int | None

    @abstractmethod
    def encode(self, text: bytes) -> NDArray[Any]:
        """Return the tokens of a text. Raises UnicodeDecodeError where characters are read and it is not UTF-8."""


class ByteTokenizer(Tokenizer):
    """One token for each byte."""

    identity = hashlib.sha256(b"bytes").digest()[:16]
    vocab_size = 256
    end_of_document = None

    def encode(self, text: bytes) -> NDArray[Any]:
        """Return the bytes."""
        return numpy.frombuffer(text, dtype=numpy.uint8)


class FileTokenizer(Tokenizer):
    """A tokenizer of the package `tokenizers`, as its file describes it, without what the file adds around a text."""

    def __init__(self, tokenizer: Any, content: bytes, end_of_document: int | None) -> None:
        """Take the loaded tokenizer and the bytes of its file."""
        # A file may carry settings that would cut texts off, or fill them up.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.identity = hashlib.sha256(content).digest()[:16]
        self.vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.end_of_document = end_of_document

    def encode(self, text: bytes) -> NDArray[Any]:
        """Return the tokens, without special tokens at the ends."""
        ids = self._tokenizer.encode(text.decode("utf-8"), add_special_tokens=False).ids
        return numpy.asarray(ids, dtype=numpy.uint32)


def load_tokenizer(path: str | None, end_of_document: str | None = None, key: str = "data.tokenizer",
                   end_key: str = "data.end_of_document") -> Tokenizer:
    """Return the tokenizer of a file, or that of bytes where `path` is None.

    `key` and `end_key` are the settings that messages name. Raises ConfigurationError when the package `tokenizers` is
    missing or the end of a document is no token, DataError for a file that is missing or no tokenizer.
    """
    if path is None:
        if end_of_document is not None:
            raise ConfigurationError(f"{end_key}={end_of_document} needs {key}: without one a token is a byte, and "
                                     f"none is left to end a document. Set {key}, or leave {end_key} out.")
        return ByteTokenizer()
    file = Path(path).expanduser()
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"{key}={path} cannot be read: {error.strerror or error}. Set {key} to a tokenizer file "
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
    end = None if end_of_document is None else tokenizer.token_to_id(end_of_document)
    if end_of_document is not None and end is None:
        raise ConfigurationError(f"{end_key}={end_of_document} is no token of {key}={path}. Set {end_key} to one of "
                                 "its tokens, such as <|endoftext|> or </s>, or leave it out.")
    return FileTokenizer(tokenizer, content, end)
