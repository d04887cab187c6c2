"""Every message of an error of ours, from the sources: the page "messages" of the site.

    python -m tools.messages
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("holmes_hpc", "analysis")
BLANK = "..."
"""Stands for what a message is told when it is made: a setting, a path, a number."""


@dataclass(frozen=True)
class Message:
    """A message, with the error that it is of, and the module that makes it."""

    text: str
    error: str
    module: str


def messages() -> list[Message]:
    """Return all messages, in the order of their modules."""
    paths = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if "_data" not in path.parts)
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    ours = {node.name for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return [message for path, tree in trees.items() for message in _of_module(path, tree, ours)]


def page() -> str:
    """Return the page: messages in the order of the alphabet, below the part of the program that they are of."""
    parts: dict[str, set[Message]] = {}
    for message in messages():
        parts.setdefault(message.module.split(".")[1], set()).add(message)
    lines = ["# Every message", "",
             f"What the program says when it refuses or fails, by the part that says it. `{BLANK}` stands for names, "
             "paths and numbers of the moment. Look for some words of yours with the search of this site. Most "
             "messages name the setting to change; [settings](../reference/settings.md) has all, and "
             "[faults](../faults.md) what happens then.", ""]
    for part, found in sorted(parts.items()):
        lines += [f"## {part}", ""]
        lines += [f"- {_plain(each.text)} ({each.error})" for each in sorted(found, key=lambda each: each.text.lower())]
        lines.append("")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Return a text that markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#|$~])", r"\\\1", " ".join(text.split()))


def _of_module(path: Path, tree: ast.Module, ours: set[str]) -> Iterator[Message]:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            text = _text(node.args[0])
            is_told = name in ours and name.endswith("Error") and not name.startswith("_")
            if is_told and text is not None and text.replace(BLANK, "").strip():
                yield Message(text, name, module)


def _text(node: ast.expr) -> str | None:
    """Return a text with blanks for what is only known when it is made; None for what is no text here."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) or "" if isinstance(part, ast.Constant) else BLANK for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        parts = [_text(side) for side in (node.left, node.right)]
        return None if parts == [None, None] else "".join(BLANK if part is None else part for part in parts)
    return None


if __name__ == "__main__":
    sys.stdout.write(page())
