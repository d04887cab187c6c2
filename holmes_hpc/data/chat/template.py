"""Finds a model's chat template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holmes_hpc.data.settings import SourceSettings
from holmes_hpc.errors import ConfigurationError, DataError
from holmes_hpc.foreign import ForeignError, read_text
from holmes_hpc.paths import at_home

_CONFIG, _OWN_FILE = "tokenizer_config.json", "chat_template.jinja"
_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class ChatTemplate:
    """A template, what it is given beside the messages, and where it is from."""

    text: str
    variables: dict[str, Any]
    origin: str


def find_template(settings: SourceSettings) -> ChatTemplate:
    """Return the template of `data.chat_template`, or of the folder that `data.tokenizer` names.

    There it is the file chat_template.jinja, or in tokenizer_config.json. Raises ConfigurationError where there is
    none, DataError for files that cannot be read.
    """
    place = at_home(settings.tokenizer or "", settings.key("tokenizer"))
    folder = place if place.is_dir() else place.parent
    config = _config(folder / _CONFIG, settings)
    variables = {name: _spelling(config.get(name)) for name in _TOKENS}
    own = folder / _OWN_FILE
    if settings.chat_template:
        own = at_home(settings.chat_template, settings.key("chat_template"))
    if settings.chat_template or own.is_file():
        return ChatTemplate(_read(own, settings), variables, str(own))
    template = config.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = next((each.get("template") for each in template
                         if isinstance(each, dict) and each.get("name") == "default"), None)
    if not isinstance(template, str):
        raise ConfigurationError(f"{settings.label} needs a chat template, and {folder} has none (neither "
                                 f"{_OWN_FILE} nor chat_template in {_CONFIG}): base models have none. Set "
                                 f"{settings.key('tokenizer')} to the folder of a model that chats, or "
                                 f"{settings.key('chat_template')} to a file with a template.")
    return ChatTemplate(template, variables, str(folder / _CONFIG))


def _config(path: Path, settings: SourceSettings) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(_read(path, settings))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no JSON: {str(error)[:200]}. Copy the model's folder again.") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} is no JSON object. Copy the model's folder again.")
    return found


def _spelling(token: Any) -> str:
    """Return how a token is spelled: files say it alone, or among its properties."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def _read(path: Path, settings: SourceSettings) -> str:
    try:
        return read_text(path, _MOST_BYTES)
    except ForeignError as error:
        raise DataError(f"{error}. Set {settings.key('chat_template')} to a file with a template, or "
                        f"{settings.key('tokenizer')} to the folder of a model.") from error
