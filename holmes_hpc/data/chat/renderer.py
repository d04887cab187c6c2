"""The process that renders conversations: a template from a stranger runs here, with bounds on time, memory and size.

It reads lines of JSON from stdin and answers each with one: first the template, then conversations. It is a program of
its own that imports jinja2 alone, and is started by `rendering`.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

OPEN, CLOSE = "\U000f0000", "\U000f0001"
"""Around what the assistant wrote, while a template renders it: private characters that no text has."""


class Generation(Extension):
    """The block `{% generation %}`, by which a template itself says what the assistant wrote."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        """Return the block's nodes, with the two marks around them."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Any) -> str:
        return f"{OPEN}{caller()}{CLOSE}"


def environment() -> ImmutableSandboxedEnvironment:
    """Return the environment that published chat templates expect, without anything to reach out of it."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = lambda value, indent=None, **others: json.dumps(value, ensure_ascii=False, indent=indent)
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = lambda form: "2024-07-26"  # samples must not depend on the day
    return made


def _refuse(message: Any) -> None:
    raise TemplateError(f"the template refuses it: {message}")


def marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with marks around what the assistant wrote, inside its blanks: templates may cut those off."""
    found = []
    for message in messages:
        content = message.get("content")
        if message.get("role") == "assistant" and isinstance(content, str) and content.strip():
            inner = content.strip()
            begin = content.index(inner)
            content = f"{content[:begin]}{OPEN}{inner}{CLOSE}{content[begin + len(inner):]}"
            message = {**message, "content": content}
        found.append(message)
    return found


def spans_of(text: str) -> tuple[str, list[list[int]]]:
    """Return a text without its marks, and the places of what they were around. Raises ValueError for half a pair."""
    parts, spans, length, begin = [], [], 0, None
    for piece in re.split(f"([{OPEN}{CLOSE}])", text):
        if piece not in (OPEN, CLOSE):
            parts.append(piece)
            length += len(piece)
        elif (piece == OPEN) is (begin is None):
            if begin is not None:
                spans.append([begin, length])
            begin = length if piece == OPEN else None
        else:
            break
    else:
        if begin is None:
            return "".join(parts), spans
    raise ValueError("the template leaves out the beginning or the end of what the assistant wrote, so the rest cannot "
                     "be told from other words; give the template {% generation %} blocks")


def answer(template: Any, variables: dict[str, Any], row: dict[str, Any], *, says_itself: bool) -> dict[str, Any]:
    """Return the text of a conversation and what of it the assistant wrote; `exact` where the template says it itself.
    """
    messages = row["messages"]

    def render(given: list[dict[str, Any]]) -> str:
        return template.render(messages=given, tools=row["tools"], add_generation_prompt=False, **variables)

    if says_itself:
        text, spans = spans_of(render(messages))
        return {"text": text, "spans": spans, "exact": True}
    plain = render(messages)
    text, spans = spans_of(render(marked(messages)))
    if text != plain:
        return {"error": "is rendered otherwise by the chat template where the assistant's words are marked, so they "
                         "cannot be told from the others; give the template {% generation %} blocks"}
    return {"text": text, "spans": spans, "exact": False}


def main() -> None:
    """Answer until stdin ends."""
    first = json.loads(sys.stdin.readline())
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + first["memory_bytes"]
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    signal.setitimer(signal.ITIMER_PROF, first["seconds"])  # sums of constants are worked out when it is read
    try:
        template = environment().from_string(first["template"])
        says_itself = "endgeneration" in first["template"]
    except (TemplateError, RecursionError, MemoryError) as error:
        _say({"error": f"{type(error).__name__}: {error}"})
        return
    signal.setitimer(signal.ITIMER_PROF, 0)
    _say({})
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, first["seconds"])  # ends the process, in the midst of whatever it does
        try:
            found = answer(template, first["variables"], json.loads(line), says_itself=says_itself)
            if len(found.get("text", "")) > first["characters"]:
                found = {"error": f"becomes more than {first['characters']} characters"}
        except MemoryError:
            found = {"error": f"makes the chat template need more than {first['memory_bytes'] >> 20} MiB"}
        except Exception as error:  # whatever a template raises concerns this row alone
            found = {"error": f"cannot be rendered by the chat template: {type(error).__name__}: {str(error)[:300]}"}
        signal.setitimer(signal.ITIMER_PROF, 0)
        _say(found)


def _say(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
