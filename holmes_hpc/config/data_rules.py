"""Rules between the settings of the group `data`."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig

from holmes_hpc.errors import ConfigurationError
from holmes_hpc.registry import SOURCES

_PATHS = {"tokens": "file of tokens", "megatron": ".bin and .idx without their endings", "text": "folder of text",
          "chat": "folder of conversations, or one file"}
_BYTES = 256


def check_data(config: DictConfig) -> None:
    """Check the data and every source of a mixture. Raises ConfigurationError for the first rule that is broken."""
    data = config.data
    if data.name != "mixture":
        if data.sources:
            raise ConfigurationError(
                f"data.sources and data={data.name} exclude each other: only a mixture has sources. Set data=mixture, "
                "or leave data.sources out."
            )
        _source(config, data, "data", data.tokenizer, data.end_of_document)
        return
    if data.path:
        raise ConfigurationError(
            f"data.path={data.path} and data=mixture exclude each other: every source has its own path. Set "
            "data.sources.N.path instead."
        )
    if not data.sources:
        raise ConfigurationError(
            "data=mixture needs data.sources, a list, as in 'data.sources=[{name: tokens, path: a.tokens, weight: 7}, "
            "{name: python_docs, weight: 3}]'."
        )
    for index, source in enumerate(data.sources):
        _source(config, source, f"data.sources.{index}", source.tokenizer or data.tokenizer,
                source.end_of_document or data.end_of_document)


def _source(config: DictConfig, source: Any, prefix: str, tokenizer: str | None, end_of_document: str | None) -> None:
    kind = f"data={source.name}" if prefix == "data" else f"{prefix}.name={source.name}"
    if source.name in SOURCES and SOURCES[source.name].needs_path and not source.path:
        raise ConfigurationError(f"{kind} needs {prefix}.path: the plug-in that added it reads files.")
    if source.name in _PATHS and not source.path:
        raise ConfigurationError(f"{kind} needs {prefix}.path, the {_PATHS[source.name]}; or use python_docs.")
    if source.name == "python_docs" and source.path:
        raise ConfigurationError(
            f"{prefix}.path={source.path} and {kind} exclude each other: that text ships with Python. Leave "
            f"{prefix}.path out, or use data=tokens."
        )
    if source.name == "chat" and not tokenizer:
        raise ConfigurationError(
            f"{kind} needs {prefix}.tokenizer: the folder of the model whose tokenizer and chat template are used."
        )
    if source.name == "text" and end_of_document and not tokenizer:
        raise ConfigurationError(
            f"{prefix}.end_of_document={end_of_document} needs {prefix}.tokenizer: without one a token is a byte, and "
            "none is left to end a document. Set a tokenizer, or leave end_of_document out."
        )
    bytes_alone = source.name == "python_docs" or (source.name == "text" and not tokenizer)
    if bytes_alone and config.model.vocab_size < _BYTES:
        raise ConfigurationError(
            f"model.vocab_size={config.model.vocab_size} cannot hold the {_BYTES} bytes of {kind}; raise it to "
            f"{_BYTES} or more."
        )
