"""Text of overrides stays as it is written: `account=5e10` is no number, and `run.folder=~/runs` needs no quotes.

Hydra's grammar gives every word a type before it knows the setting, and refuses many characters outside of quotes. So
the values of settings that are text by the schema are put into Hydra's quotes where it would read something else.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Sequence
from typing import Any

from holmes_hpc.config.describe import item_schema, settings
from holmes_hpc.config.schema import Root
from holmes_hpc.paths import at_home

SEARCH_PATH = "hydra.searchpath"
_OVERRIDE = re.compile(r"([+]{0,2})([A-Za-z_][^=\s]*)=(.*)", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d[\d_]*)?|[-+]?(inf|nan)", re.IGNORECASE)
_TRUTH = re.compile(r"true|false", re.IGNORECASE)
_PLAIN = re.compile(r"[\w/\-.+%@:$*?|\\ ]+", re.ASCII)
"""What Hydra reads without quotes as a text; numbers and words among it are looked at apart."""
_CALL = re.compile(r"(choice|range|interval|glob|shuffle|sort|extend_list|tag|str|int|float|bool|json_str)\(.*\)",
                   re.DOTALL)
_INTERPOLATION = re.compile(r"(?<!\\)\$\{[^{}]*\}")
_OPEN, _CLOSE, _QUOTES = "([{", ")]}", "'\""
_ANY_OPTION = object()
"""The kind of a value of sbatch: text, but for `true`, `false` and null."""


def as_written(overrides: Sequence[str]) -> list[str]:
    """Return overrides with quotes around texts that Hydra would read as something else, or not at all.

    Functions, interpolations and what is in quotes already stay as they are. Applying it twice changes nothing.
    """
    return [_override(text) for text in overrides]


def corrected(override: str) -> str:
    """Return an override with its whole value in Hydra's quotes."""
    key, _, value = override.partition("=")
    return f"{key}={quoted(','.join(map(_bare, _split(value) or [value])))}"


def nesting(text: str) -> int:
    """Return how deep the brackets of an override are nested, those in quotes left out."""
    deepest = depth = 0
    quote = ""
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote and not _escaped(text, place) else quote
        elif letter in _QUOTES:
            quote = letter
        else:
            depth += (letter in _OPEN) - (letter in _CLOSE)
            deepest = max(deepest, depth)
    return deepest


def _override(text: str) -> str:
    match = _OVERRIDE.fullmatch(text)
    if match is None:
        return text
    sign, key, value = match.groups()
    kind = _kind_of(key)
    if kind is None or not value:
        return text
    pieces = _split(value)
    if pieces is None:
        return f"{sign}{key}={quoted(value)}" if kind is str and "," not in value else text
    if dataclasses.is_dataclass(kind) and "." not in key:  # an option of a group: the name of a file
        return f"{sign}{key}={','.join(quoted(piece) if _is_value(piece) else piece for piece in pieces)}"
    if key == SEARCH_PATH:
        pieces = [_home(piece) for piece in pieces]
    return f"{sign}{key}={','.join(_value(piece, kind) for piece in pieces)}"  # of a sweep each is a text of its own


def _kind_of(key: str) -> Any:
    """Return the type of the setting at a dotted path, None where there is no such setting."""
    if key == SEARCH_PATH:
        return list[str]
    schema: Any = Root
    parts = key.split(".")
    while parts:
        known = settings(schema)
        if parts[0] not in known:
            return None
        kind = known[parts.pop(0)].kind
        schema = item_schema(kind) or kind
        if parts and schema is not kind:
            parts.pop(0)  # a label, or the number of an item
            kind = schema
        elif parts and not dataclasses.is_dataclass(kind):
            return _item_kind(kind) if len(parts) == 1 else None
    return kind


def _item_kind(kind: Any) -> Any:
    """Return the type of the values of a mapping or the items of a list."""
    arguments = typing.get_args(kind)
    if not arguments:
        return None
    return _ANY_OPTION if typing.get_origin(kind) is dict and arguments[-1] is Any else arguments[-1]


def _value(text: str, kind: Any, *, inside: bool = False) -> str:
    """Return a value with quotes around its texts, as far as `kind` says what is text; `inside` a list or mapping."""
    bare = text.strip()
    if not bare or bare[0] in _QUOTES or bare == "null" or _CALL.fullmatch(bare):
        return text
    if kind is _ANY_OPTION and bare[0] in "{[":  # what a library is told may be a mapping or a list of its own
        return text
    if kind is str or kind is _ANY_OPTION:
        around = _INTERPOLATION.sub("i", bare)
        if "${" in around or (around != bare and any(quote in bare for quote in _QUOTES)):
            return text
        plain = _is_plain(around) and not (inside and ":" in around)
        return text if plain or (kind is _ANY_OPTION and _TRUTH.fullmatch(bare)) else quoted(bare)
    if bare.startswith("[") and typing.get_origin(kind) is list:
        items = _split(bare[1:-1])
        return text if items is None else f"[{','.join(_value(item, _item_kind(kind), inside=True) for item in items)}]"
    if bare.startswith("{") and (typing.get_origin(kind) is dict or dataclasses.is_dataclass(kind)):
        entries = _split(bare[1:-1])
        return text if entries is None else f"{{{','.join(_entry(entry, kind) for entry in entries)}}}"
    return text


def _entry(text: str, kind: Any) -> str:
    """Return `name: value` of a mapping with quotes around its text."""
    name, colon, value = text.partition(":")
    if not colon or name.strip()[:1] in _QUOTES:
        return text
    if dataclasses.is_dataclass(kind):
        known = settings(kind)
        inner = known[name.strip()].kind if name.strip() in known else None
    else:
        inner = _item_kind(kind)
    return f"{name}:{' ' if value.startswith(' ') else ''}{_value(value, inner, inside=True)}"


def _is_plain(text: str) -> bool:
    """Whether Hydra reads this as the text that is written."""
    return bool(_PLAIN.fullmatch(text)) and not (_is_value(text) or text.lower() == "null" or "\\" in text
                                                 or "  " in text)


def _is_value(text: str) -> bool:
    """Whether Hydra reads this as a number or a truth value."""
    return bool(_NUMBER.fullmatch(text) or _TRUTH.fullmatch(text))


def _bare(text: str) -> str:
    """Return a text without the quotes around it, where none are in it."""
    quote, inner = text.strip()[:1], text.strip()[1:-1]
    return inner if quote in ("'", '"') and text.strip().endswith(quote) and quote not in inner else text


def _split(text: str) -> list[str] | None:
    """Split at commas outside of brackets and quotes; None where those do not close."""
    parts: list[str] = []
    depth: list[str] = []
    quote, begin = "", 0
    for place, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote and not _escaped(text, place) else quote
        elif letter in _QUOTES and (not text[:place].strip() or text[:place].rstrip()[-1] in "[{(,:="):
            quote = letter
        elif letter in _OPEN:
            depth.append(_CLOSE[_OPEN.index(letter)])
        elif letter in _CLOSE:
            if not depth or depth.pop() != letter:
                return None
        elif letter == "," and not depth:
            parts.append(text[begin:place])
            begin = place + 1
    return None if depth or quote else [*parts, text[begin:]]


def _escaped(text: str, place: int) -> bool:
    before = text[:place]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 1


def _home(text: str) -> str:
    """Return a list of folders with `~/` as the home folder, which Hydra does not know."""
    items = _split(text.strip()[1:-1]) if text.strip().startswith("[") else None
    if items is None:
        return text
    whole = [str(at_home(item.strip(), "hydra.searchpath")) if item.strip().startswith("~") else item
             for item in items]
    return f"[{','.join(whole)}]"


def quoted(text: str) -> str:
    """Return a text in Hydra's quotes, in which a backslash counts only before a quote."""
    quote = '"' if '"' not in text else "'"
    escaped = re.sub(r"(\\*)" + quote, lambda match: match[1] * 2 + "\\" + quote, text)
    ending = len(escaped) - len(escaped.rstrip("\\"))
    return f"{quote}{escaped}{chr(92) * ending}{quote}"
