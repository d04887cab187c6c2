"""Sets the group `model` from the published model that `model.from_pretrained` names. Reads its config.json alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from holmes_hpc.config.schema import Model
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.families import FOLDER_KEY, ModelFolder
from holmes_hpc.paths import is_there

_FILLED = "from_pretrained_filled_in"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""Files of which one is in the folder of a model with a tokenizer."""
_BYTES = 256
OWN = ("name", "sequence_length", "initialization_std", "rotary_base", "rotary_scaling", "rotary_factor",
       "rotary_low_frequency_factor", "rotary_high_frequency_factor", "rotary_original_length",
       "normalization_epsilon")
"""What may be set beside the folder: names, lengths, and what gives the same weights another use on purpose."""


def fill_in(config: DictConfig, overrides: Sequence[str]) -> None:
    """Set every setting of the group `model` that the folder says; call it before the configuration is checked.

    `overrides` are those of the command line. Raises ConfigurationError for a folder that cannot be used, and for an
    override of what the weights are.
    """
    wanted = OmegaConf.select(config, FOLDER_KEY, throw_on_missing=False)
    if not isinstance(wanted, str) or not isinstance(config.get("model"), DictConfig):
        return
    model = config.model
    if model._get_flag(_FILLED):
        return
    written = _written(model, overrides)
    folder = ModelFolder(wanted)
    length = written.get("sequence_length")
    settings = folder.settings(length if isinstance(length, int) and length > 0 else None)
    names = {each.name for each in fields(Model)}
    for name, value in _plain(settings).items():
        if name not in names:
            continue
        if name in written and name in OWN:
            continue
        if name in written and not _same(name, written[name], value, settings):
            preset = _preset(name, overrides)
            raise ConfigurationError(
                f"model.{name}={_shown(written[name])}{preset and f' (of {preset})'} and {FOLDER_KEY}={wanted} exclude "
                f"each other: the model there has {_shown(value)}, and its weights mean nothing else. Leave "
                f"{preset or f'model.{name}'} out. Beside the folder may be set: "
                f"{', '.join(f'model.{each}' for each in OWN)}.")
        model[name] = value
    model.from_pretrained = str(folder.path)
    model._set_flag(_FILLED, True)
    if is_of_bytes(folder.path, model.vocab_size):
        _take_bytes(config)


def is_of_bytes(folder: Path, vocab_size: int) -> bool:
    """Say whether a model's folder is what export writes of one that was trained on bytes: without any tokenizer."""
    return vocab_size == _BYTES and not any(is_there(folder / name) for name in TOKENIZERS)


def _take_bytes(config: DictConfig) -> None:
    """Set that a byte is a token where nothing else was asked for: an export of a model of bytes has no tokenizer."""
    data = config.get("data")
    if isinstance(data, DictConfig) and OmegaConf.is_interpolation(data, "tokenizer"):
        data.tokenizer = None


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with what a family leaves as it is by default, so that an earlier value does not stay."""
    defaults = {each.name: each.default for each in fields(Model) if each.name != "from_pretrained"}
    return {**defaults, **settings}


def _preset(name: str, overrides: Sequence[str]) -> str:
    """Return the override `model=...` where that, and none of its own, set a setting of the model; else nothing."""
    if any(text.lstrip("+").partition("=")[0] == f"model.{name}" for text in overrides):
        return ""
    return next((text for text in overrides if text.lstrip("+").startswith("model=")), "")


def _written(model: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the settings that were set: on the command line, or by a file to something else than the default."""
    named = {text.lstrip("+").partition("=")[0].removeprefix("model.") for text in overrides
             if text.lstrip("+").startswith("model.")}
    found = {}
    for each in fields(Model):
        if each.name == "from_pretrained" or each.name not in set(model) or OmegaConf.is_missing(model, each.name):
            continue
        value = model[each.name]
        if each.name in named or (value != each.default and each.name not in ("name", "family")):
            found[each.name] = value
    return found


def _same(name: str, written: Any, value: Any, settings: dict[str, Any]) -> bool:
    """Say whether a setting says what the folder says; null means the default, which need not be spelled out."""
    if written is None:
        plain = {"head_size": settings["hidden_size"] // settings["num_heads"], "num_kv_heads": settings["num_heads"],
                 "ffn_hidden_size": 4 * settings["hidden_size"]}
        return bool(value is None or plain.get(name) == value)
    return bool(written == value)


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
