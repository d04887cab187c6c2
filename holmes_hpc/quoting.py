"""One function for each place that text from outside goes to: a shell, a line of sbatch, a terminal, a table, a page.

What a place reads as more than text is quoted there, or refused where it cannot be.
"""

from __future__ import annotations

import html
import re
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from holmes_hpc.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.text import Text

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u206f"
                      "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]")
"""What moves a cursor, ends a line, turns the direction of text, or is not seen, so that it shows as other than it is.

The joiners U+200C and U+200D are letters' neighbours in many scripts, and stay."""
_PLAIN_OPTION = re.compile(r"[^\s\"'#\\]+")


def control_character(text: str, allowed: str = "") -> str | None:
    """Return the first control character of a text, as it is written in Python (`\\n`, `\\x1b`); None without one."""
    found = next((match[0] for match in _CONTROL.finditer(text) if match[0] not in allowed), None)
    return None if found is None else _escaped(found)


def for_shell(text: str) -> str:
    """Return a text as one word of a shell."""
    return shlex.quote(text)


def for_srun(words: Iterable[str]) -> str:
    """Return the words of a command as they stand in a line of a script. Raises ConfigurationError for line breaks."""
    words = list(words)
    for word in words:
        _refuse_control(word, "an argument of srun")
    return shlex.join(words)


def for_sbatch(text: str, name: str = "a value") -> str:
    """Return a value of an `#SBATCH` line, in double quotes where sbatch would split it or see a comment.

    Raises ConfigurationError for line breaks and the like, since the rest would be a line of the script; `name` says
    whose value it is.
    """
    _refuse_control(text, name)
    if _PLAIN_OPTION.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def for_terminal(text: str) -> str:
    """Return a text that moves no cursor and changes no colour: control characters are written out."""
    return _CONTROL.sub(lambda match: match[0] if match[0] in "\n\t" else _escaped(match[0]), text)


def one_line(text: str) -> str:
    """Return a text as `for_terminal` does, with line breaks and tabs written out too."""
    return _CONTROL.sub(lambda match: _escaped(match[0]), text)


def for_html(text: str) -> str:
    """Return a text as it stands in a page."""
    return html.escape(for_terminal(text))


def for_table(text: str) -> Text:
    """Return a text for rich, which reads no markup in it."""
    from rich.text import Text

    return Text(for_terminal(text))


def _refuse_control(text: str, name: str) -> None:
    found = control_character(text)
    if found is not None:
        raise ConfigurationError(f"{name}, {text!r}, has the control character {found}, and a script ends its lines "
                                 "by such; give it another name without one")


def _escaped(character: str) -> str:
    return repr(character)[1:-1]
