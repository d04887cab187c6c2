"""Hides secrets in what is written for reading and shown: by the names of what holds them, and by their own forms.

Nobody can know every secret; docs/security.md says which names and forms are known. Too much hidden is no harm.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from holmes_hpc.quoting import for_terminal

HIDDEN = "***"

_NAME = re.compile(
    r"TOKEN(?!S|IZ|_CACHE)|SECRET|PASS(WD|WORD|PHRASE|CODE)|CREDENTIAL|API_?KEY|ACCESS_?KEY|ACCOUNT_?KEY"
    r"|CONNECTION_?STRING"
    r"|(^|[_.])(API|AUTH|AUTHORIZATION|BEARER|JWT|PAT|COOKIE|KEYS?|PASS|PWD|PW|SIG|SIGNATURE|DSN|WEBHOOK)([_.]|$)",
    re.IGNORECASE,
)
_NAMED = (
    re.compile(r"([\w.+~-]+)="),
    re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]*)\s+(?!-)"),
    re.compile(r"""(?:^[ \t]*(?:-[ \t]+)?|[{,][ \t]*)["']?([\w.-]+)["']?:[ \t]+""", re.MULTILINE),
    re.compile(r"""["']([\w.-]+)["'][ \t]*:[ \t]*"""),
)
"""Where a name stands before its value: NAME=, --name, name: of YAML, "name": of JSON."""
_WORD = (r"""(?:'[^'\n]*'|"(?:\\.|[^"\\\n])*"|\\.|,(?!\s|$|[\w.-]+=)|[\])}](?!\s|$|[\])},'"])"""
         r"""|[^\s,;&|'"\])}\\])+""")
"""A value as shells and Hydra write it: quoted parts and plain ones in a row, up to what ends a word."""
_VALUE = re.compile(rf"""{_WORD}|['"][^\n]*""")

_PROGRAMS = (r"wandb|huggingface-cli|huggingface|hf|docker|podman|nerdctl|apptainer|singularity|ngc|comet|neptune|"
             r"mlflow|clearml|gh|glab|oras|helm|az|gcloud|aws|modal|dvc|npm|twine")
_LOGIN = re.compile(rf"(\b(?:{_PROGRAMS})(?:[ \t]+(?:auth|registry|remote))?[ \t]+login)(?:[ \t]+{_WORD})+")
_HEADER = re.compile(r"""(?i)(\b(?:authorization|x-api-key|api-key|cookie|[\w-]*-token)["']?:[ \t]*)[^'"\n]+""")
_AFTER = re.compile(rf"(?i)(\bbearer[ \t]+|(?<![\w-])-u[ \t]+(?=\S+:)|--user[ \t]+(?=\S+:)|\bsshpass[ \t]+-p[ \t]*"
                    rf"|\blogin[ \t]+\S+[ \t]+password[ \t]+){_WORD}")
_FORMS = (
    re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY[A-Z -]*-----|\Z)", re.DOTALL),
    re.compile(r"""(?<=://)[^/\s'"]+(?=@)"""),
    re.compile(r"\b(?:gh[opusr]_|github_pat_|glpat-|hf_|sk-|sk_live_|rk_live_|xox[abeprs]-|npm_|pypi-|dckr_pat_|nvapi-|"
               r"wandb_v1_|dop_v1_|AIza)[A-Za-z0-9_-]{12,}"),
    re.compile(r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?"),
    # A long word of letters and digits given to a variable, whatever its name: keys of trackers are such.
    re.compile(r"""(?<=[A-Z0-9_]=)["']?(?=[A-Za-z_+=-]*[0-9])(?=[0-9_+=-]*[A-Za-z])[A-Za-z0-9_+=-]{24,}["']?(?![\w/.:])"""),
)


def is_secret(name: str) -> bool:
    """Say whether a variable, setting or option of this name holds a secret."""
    return bool(_NAME.search(name.lstrip("-+~").replace("-", "_")))


def redact(text: str) -> str:
    """Return a text with every secret in it hidden that is known by its name or form."""
    for form in _FORMS:
        text = form.sub(HIDDEN, text)
    for before in (_HEADER, _AFTER, _LOGIN):
        text = before.sub(lambda match: match[1] + ("" if match[1].endswith((" ", "\t", "p")) else " ") + HIDDEN, text)
    for named in _NAMED:
        text = _hide_values(text, named)
    return text


def redact_value(value: Any) -> Any:
    """Return a value of JSON or YAML with the secrets in it hidden: texts, and what keys name as secret."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {redact(key) if isinstance(key, str) else key:
                HIDDEN if is_secret(str(key)) and isinstance(item, str | int | float) and not isinstance(item, bool)
                else redact_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [HIDDEN if _is_option(before) and isinstance(item, str) and not item.startswith("-")
                else redact_value(item) for before, item in zip([None, *value], value, strict=False)]
    return value


def _is_option(word: Any) -> bool:
    """Say whether a word of a command is an option of a secret name, whose value is the next word."""
    return isinstance(word, str) and word.startswith("-") and "=" not in word and " " not in word and is_secret(word)


def _hide_values(text: str, named: re.Pattern[str]) -> str:
    """Hide what follows a secret's name. Names are looked for inside of other values too: `--export=HF_TOKEN=x`."""
    parts, done = [], 0
    for match in named.finditer(text):
        if match.end() < done or not is_secret(match[1]):
            continue
        value = _VALUE.match(text, match.end())
        if value is not None and value[0].lower() != "value":  # of our own messages: `key=value`
            parts += [text[done:match.end()], HIDDEN]
            done = value.end()
    return "".join([*parts, text[done:]])


class RedactingFormatter(logging.Formatter):
    """Writes records of a log with the secrets in them hidden, and nothing that steers a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line or lines of a record."""
        return for_terminal(redact(super().format(record)))
