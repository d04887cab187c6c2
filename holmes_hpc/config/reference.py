"""The page of all settings, docs/reference/settings.md, in Markdown. `holmes settings --markdown` prints it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holmes_hpc.config import folders
from holmes_hpc.config.listing import GROUPS, Listed, listed_settings, shown
from holmes_hpc.config.schema import Root

_HEAD = """\
# Settings

<!-- Made from the schema by `holmes settings --markdown`; change holmes_hpc/config/schema.py, then make it again. -->

Every setting with its default and what it takes. Write `KEY=VALUE` after a command, as in `holmes train +cluster=mixed
train.steps=200`, or put the keys of a group into a file of your own ([clusters](../clusters.md),
[running](../running.md#settings)). `null` means that the planner or the program chooses. `holmes settings WORD` shows
on the terminal what a word occurs in; `--cfg job` behind a command shows what all settings are for it.
"""


def reference_text(base: Path) -> str:
    """Return the page; `base` is the folder of the configuration files that ship with the package."""
    found = listed_settings(base)
    parts = [_HEAD]
    for group in dict.fromkeys(each.group for each in found):
        if group:
            parts.append("\n".join(_section(group, [each for each in found if each.group == group], base)))
    alone = [each for each in found if not each.group]
    parts.append("\n".join(["## Without a group", "", *_table(alone), "", *_words(alone)]).rstrip() + "\n")
    return "\n".join(parts)


def _section(group: str, found: list[Listed], base: Path) -> Iterator[str]:
    field = Root.__dataclass_fields__[group]
    yield f"## {group}"
    yield ""
    text = _sentence(str(field.metadata["help"]))
    if group in GROUPS:
        names = ", ".join(f"`{name}`" for name in folders.options(group, base))
        text += f" Chosen by `{'+' if group == 'cluster' else ''}{group}=NAME`, of those that ship: {names}."
    yield text
    yield ""
    yield from _table(found)
    yield ""
    yield from _words(found)


def _table(found: list[Listed]) -> Iterator[str]:
    yield "| key | default | takes | meaning |"
    yield "|---|---|---|---|"
    for each in found:
        default = _code(each.default) + "".join(f"; with `{choice}` {_code(value)}"
                                               for choice, value in each.others.items())
        yield f"| `{each.path}` | {default} | {_cell(each.takes)} | {_cell(_sentence(each.setting.help))} |"


def _words(found: list[Listed]) -> Iterator[str]:
    """Yield what the words mean that a setting takes, where the schema says."""
    for each in found:
        told = each.setting.metadata.get("told")
        if told:
            yield f"`{each.path}` is one of these words:"
            yield ""
            yield from (f"- `{word}`: {meaning}" for word, meaning in told.items())
            yield ""


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}" + ("" if text.endswith(".") else ".")


def _code(value: Any) -> str:
    text = shown(value)
    return text if text.startswith("none:") else f"`{_cell(text)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
