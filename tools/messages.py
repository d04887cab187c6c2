"""Every message of ours, from the sources: the page "messages" of the site.

A message is what an error is given, and any other text that is a sentence: what helpers return for an error to say,
parts that are joined, warnings and notes.

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
_LEAST_WORDS = 4
_WORD = re.compile(r"(?<![\w-])[A-Za-z']{2,}(?!\w)")
_NO_MESSAGE = re.compile(r"<[a-z/]|\\|\n.*\n|[{}^]|-- |^[/#]|^(?:link|qdisc|class|filter|addr|route|rule) ", re.DOTALL)
"""Pages, patterns, programs, and commands of `ip` and `tc`."""
_FILLED_LATER = re.compile(r"%(?:\.\d+)?[srdgf]\b")
_CALLS_FOR_OTHERS = {"setting", "field", "compile", "fullmatch", "search", "match", "sub", "finditer", "ArgumentParser",
                     "add_parser"}
_ARGUMENTS_FOR_OTHERS = {"help", "description", "epilog", "usage", "metavar", "prog"}
"""What describes settings and arguments has pages of its own."""


@dataclass(frozen=True)
class Message:
    """A message, with the error that it is given to ("" where a helper makes it), and the module that makes it."""

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
             f"What the program says when it refuses, fails or warns, by the part that says it. `{BLANK}` stands for "
             "names, paths and numbers of the moment. Look for some words of yours with the search of this site: a "
             "message may be put together of several that are here. Those of errors name theirs in brackets. Most "
             "messages name the setting to change; [settings](../reference/settings.md) has all, and "
             "[faults](../faults.md) what happens then.", ""]
    for part, found in sorted(parts.items()):
        lines += [f"## {part}", ""]
        lines += [f"- {_plain(each.text)}" + (f" ({each.error})" if each.error else "")
                  for each in sorted(found, key=lambda each: (each.text.lower(), each.error))]
        lines.append("")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Return a text that markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#|$~])", r"\\\1", " ".join(text.split()))


def _of_module(path: Path, tree: ast.Module, ours: set[str]) -> Iterator[Message]:
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    given: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            name = _called(node)
            text = _text(node.args[0])
            is_told = name in ours and name.endswith("Error") and not name.startswith("_")
            if is_told and text is not None and text.replace(BLANK, "").strip():
                given.add(id(node.args[0]))
                yield Message(text, name, module)
    for node, text in _texts(tree):
        if id(node) not in given and len(_WORD.findall(text)) >= _LEAST_WORDS and not _NO_MESSAGE.search(text):
            yield Message(_FILLED_LATER.sub(BLANK, text.strip()), "", module)


def _texts(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """Yield the texts in a part of a program, as long as they belong together, but for what describes and documents."""
    if isinstance(node, ast.Call) and _called(node) in _CALLS_FOR_OTHERS:
        return
    if isinstance(node, ast.keyword) and node.arg in _ARGUMENTS_FOR_OTHERS:
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
        return
    text = _text(node) if isinstance(node, ast.expr) else None
    if text is not None and isinstance(node, ast.expr):
        yield node, text
    # Of a text only what is put into its blanks may hold others.
    inside = [node] if text is None else [each for each in ast.walk(node) if isinstance(each, ast.FormattedValue)]
    for each in inside:
        for child in ast.iter_child_nodes(each):
            yield from _texts(child)


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


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
