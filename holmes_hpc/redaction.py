"""Hides secrets in what is written for reading and shown: by the names of what holds them, and by their own forms.

Nobody can know every secret; docs/security.md says which names and forms are known. Too much hidden is no harm.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from holmes_hpc.quoting import for_terminal

HIDDEN = "***"
_LONGEST_LINE = 8192
_SHORT = 256
"""Letters of a text that is kept once it was looked through."""

_NAME = re.compile(
    r"TOKEN(?!S|IZ|_CACHE)|SECRET|PASS(WD|WORD|PHRASE|CODE)|CREDENTIAL|CREDS|API_?KEY|ACCESS_?KEY|ACCOUNT_?KEY"
    r"|CONNECTION_?STRING|(SSH|PG|ASK|STORE|KEY)PASS|AUTH_?KEY|SESS(ION)?_?ID|CSRF"
    r"|(^|[_.])(API|AUTH|AUTHORIZATION|BEARER|JWT|PAT|COOKIE|HMAC|SALT|NONCE|OTP|(?<!QUERY_)(?<!NUM_)KEYS?|PASS|PWD|PW|SIG|SIGNATURE|DSN"
    r"|WEBHOOK)([_.]|$)|(^|[_.])PIN$",
    re.IGNORECASE,
)
_CAMEL_NAME = re.compile(r"[a-z0-9](Keys?|Auth|Pwd|Pass|Sig|Signature|Cookie|Pin|Dsn)$")
_NAMED = (
    re.compile(r"""\b(?:key|name)=["']?([\w.-]++)["']?[ \t]+value="""),
    re.compile(r"(?<![\w.+~-])([\w.+~-]++)="),
    re.compile(r"(?<![\w.-])([\w.]++(?:-[\w.]++)*+)[ \t]{0,8}[=-]>[ \t]{0,8}"),
    re.compile(r"(?<![\w.+~-])([\w.+~-]++)(?:[ \t]{1,8}=(?!>)|[ \t]{0,8}:=|:-|[ \t]{1,8}:(?!:)|:(?=[^\s:/]))(?!=)"
               r"[ \t]*"),
    re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]*)\s+(?!-)"),
    re.compile(r"""(?:^[ \t]*(?:-[ \t]+)?|[{,][ \t]*)["']?([\w.-]+)["']?:[ \t]+""", re.MULTILINE),
    re.compile(r"""\\{0,4}["']([\w.-]+)\\{0,4}["'][ \t]*(?::|\]?[ \t]*=(?!=))[ \t]*"""),
    re.compile(r"(?<![\w-])(?:setenv|setx|ENV|ARG|set[ \t]+-[A-Za-z]+|config(?:ure)?[ \t]+set)[ \t]+([\w.-]+)[ \t]+"
               r"(?![-=])"),
    re.compile(r"""["']([A-Z][A-Z0-9]*_[A-Z0-9_]+)["'][ \t]*,[ \t]*(?=["'])"""),
    re.compile(r"<([\w.-]++)>(?=[^<\n]*</)"),
    re.compile(r"\b([A-Z][A-Z0-9]*_[A-Z0-9_]+)[ \t]+(?=[^\s]{0,99}[0-9])(?=[^\s]{8})"),
)
"""Where a name stands before its value: NAME=, NAME =, ${NAME:-, --name, YAML's name:, JSON's "name":, x["name"] =,
setenv NAME, ("NAME", "x"), NAME => x, <name>x</name>, key="name" value="x", and NAME x where x is no word."""
_WORD = (r"""(?:'[^'\n]*'|"(?:\\.|[^"\\\n])*"|\\[\s\S]|,(?!\s|$|[\w.-]+=)|[\])}](?!\s|$|[\])},'"])"""
         r"""|[$<]\([ \t]*(?:echo|printf)\b[^)\n]*\)?|[^\s,;&|'"\])}\\])+""")
"""A value as shells and Hydra write it: quoted parts and plain ones in a row, up to what ends a word."""
_TOLD = r"(?:\$\([ \t]*(?:echo|printf)\b[^)\n]*\)?|`[ \t]*(?:echo|printf)\b[^`\n]*`?)"
_VALUE = re.compile(rf"""{_TOLD}|{_WORD}|['"][^\n]*""")

_PROGRAMS = (r"wandb|huggingface-cli|huggingface|hf|docker|podman|nerdctl|apptainer|singularity|ngc|comet|neptune|"
             r"mlflow|clearml|gh|glab|oras|helm|az|gcloud|aws|modal|dvc|npm|twine|vault|flyctl|fly|heroku|"
             r"vercel|tsh|oc")
_LOGIN = re.compile(rf"(\b(?:{_PROGRAMS})(?:[ \t]+(?:auth|registry|remote))?[ \t]+login)(?:[ \t]+{_WORD})+")
_HEADER = re.compile(r"""(?i)((?<![\w-])[\w-]{0,80}?(?:authorization|api-key|cookie|-token|-auth|-secret|-password)"""
                     r"""["']?:[ \t]*)[^'"\n]+""")
_SAID_OF = (r"(?:not?|an?|the|to|in|on|at|of|for|by|from|with|as|its?|this|that|what|your|my|our|one|wrong|right|"
            r"correct|incorrect|invalid|valid|empty|missing|unknown|too|very|set|unset|kept|read|sent|put|lost|gone|there|here|only|never|"
            r"always|also|still|now|already|then|short|long|weak|strong|secret|private|public|safe|ok|okay|fine|good|bad|"
            r"same|different|new|old|null|none|true|false|case|per|text|optional|if|where|when|because|"
            r"\w+(?:ed|ing|en|own|able|ible))\b")
"""What people say of a password; another word after `the password is` is the password."""
_AFTER = re.compile(rf"(?im)(\bbearer[ \t]+|(?<![\w-])-u[ \t]*(?=[^\s:]+:[^\s:])|--(?:proxy-)?user[ \t=]+(?=\S+:)"
                    rf"|\blogin[ \t]+\S+[ \t]+password[ \t]+"
                    rf"|<<<[ \t]*|\bsecret_access_key[ \t]+|^[ \t]*password[ \t]+(?!is\b|[:=])"
                    rf"|\bidentified[ \t]+by[ \t]+|\bpassword[ \t]+(?=['\"])"
                    rf"|\b(?:password|passwd|passphrase|passcode|pw|pin|token|secret)[ \t]+(?:is[ \t:]+|was[ \t]+)?"
                    rf"(?=\S{{0,99}}[0-9])(?=\S{{0,99}}[A-Za-z])(?=\S{{8}})"
                    rf"|\b(?:password|passwd|passphrase|passcode|pw|pwd)[ \t]+(?:is|was)[ \t:]+(?!{_SAID_OF})"
                    rf"(?=[\w'\"])"
                    rf"|\bpin[ \t]+(?:is|was)[ \t:]+(?=[0-9]{{4}})"
                    rf"|(?<!\S)/(?:p|pw|pass|password|pwd|rp):(?![\w.]+=)"
                    rf"|(?<![\w/])(?:password|passwd|passphrase):[ \t]+|(?<![\w-])-?pass(?:in|out)?[ \t=]+(?=pass:)"
                    rf"|\bapi[ _-]?key[ \t:]+(?=\S*[0-9])){_WORD}")
_PIPED = re.compile(r"(\b(?:echo|printf)[ \t]+)[^\n|;&>]{1,400}+(?=\|[^\n;]{0,400}(?:\blogin\b|-stdin\b|-fd\b"
                    r"|\bsudo[ \t]+-S|\b(?:kinit|su|cryptsetup)\b|--with-token"
                    r"|\b(?:ch)?passwd|\bsecret)|>{1,2}[ \t]*\S{0,200}?(?:netrc|token|secret|passw|credential))")
"""What a shell tells a program that logs in by a pipe, or a file that holds such."""
_PROGRAM_OPTIONS = (
    (r"(?:mysql|mariadb)[\w-]*|7z\w*", r"-p"),
    (r"(?:docker|podman|nerdctl)[^\n]*\blogin|sshpass|mongo\w*|cqlsh|ncftp\w*", r"-p[ \t=]*"),
    (r"openssl", r"-[kK][ \t]+"),
    (r"redis-cli", r"-a[ \t]*"), (r"ldap\w+", r"-w[ \t]*"), (r"zip|unzip|sqlcmd|isql|bcp|ipmitool|mosquitto_\w+",
                                                              r"-P[ \t]*"),
    (r"ssh-keygen", r"-[NP][ \t]*"), (r"snmp\w+", r"-[AXc][ \t]*"), (r"rar|unrar", r"-h?p"),
    (r"beeline|hive|useradd|usermod|impala[\w-]*|psexec\w*|trino|presto[\w-]*|clickhouse[\w-]*", r"-p[ \t]*"),
    (r"schtasks|tasklist|taskkill|systeminfo|wmic", r"/(?:rp|p|password)[ \t:]+"), (r"https?|xh", r"-a[ \t]*"),
    (r"smbclient", r"//\S+[ \t]+(?!-)"), (r"curl", r"-b[ \t]*"),
    (r"smbclient|rpcclient", r"-U[ \t]*[^\s%]+%"), (r"lftp", r"-u[ \t]*[^\s,]+,"), (r"xfreerdp|freerdp", r"/p:"),
)
"""Options whose names alone tell nothing, by the programs that take a password by them."""
_PROGRAM_WORDS = [(re.compile(rf"(?<![\w-])(?:{program})\b[^\n]*"), re.compile(rf"(?<!\S)({option})(?!\s){_WORD}"))
                  for program, option in _PROGRAM_OPTIONS]
_REST = re.compile(
    r"(\bmc[ \t]+alias[ \t]+set[ \t]+|\brclone[ \t]+config[ \t]+(?:create|update|password)[ \t]+"
    r"|\bkaggle[ \t]+config[ \t]+set[ \t]+|\bvault[ \t]+(?:kv[ \t]+put|write)[ \t]+"
    r"|\b(?:kubectl[ \t]+create|gh)[ \t]+secret[ \t]+|\bhtpasswd[ \t]+-\w*b\w*[ \t]+|\bexpect[ \t]+-c[ \t]*"
    r"|\bnet[ \t]+use[ \t]+|\bngrok[^\n]{0,40}authtoken[ \t]+|\bheroku[ \t]+auth:token[ \t]+"
    r"|(?m:^)[ \t'\"-]{0,20}(?:requirepass|masterauth|AUTH|PASS)[ \t]+|\bsqlplus[ \t]+|\blogin\((?=[^)\n]))[^\n]+")
"""Commands that are all about secrets, of which nothing more is shown."""
_FORMS = (
    re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY[A-Z -]*-----|\Z)", re.DOTALL),
    re.compile(r"""(?<=://)[^/\s'"]+(?=@)"""),
    re.compile(r"""(?<![^\s'"=])[\w.+-]{1,64}:[^\s@:/'"]{1,256}@(?!sha256\b)(?=[A-Za-z0-9])"""),
    re.compile(r"""(?:(?<=hooks\.slack\.com/)|(?<=/api/webhooks/)|(?<=api\.telegram\.org/bot))[^\s'"]+"""),
    re.compile(r"\b(?:gh[opusr]_|github_pat_|gl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|soat)-|hf_|gsk_|r8_|xapp-|SG\.|sk-|sk_live_|rk_live_|xox[abeprs]-|npm_|pypi-|dckr_pat_|nvapi-|"
               r"wandb_v1_|dop_v1_|AIza)[A-Za-z0-9_-]{12,}"),
    re.compile(r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b"),
    re.compile(r"\b[0-9]{6,12}:AA[A-Za-z0-9_-]{30,}"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?"),
    # A long word of letters and digits given to a variable, whatever its name, or to echo: keys of trackers are such.
    re.compile(r"""(?:(?<=[A-Z0-9_]=)|(?<=\becho )|(?<=\bprintf ))["']?"""
               r"""(?=[A-Za-z_+=-]{0,400}[0-9])(?=[0-9_+=-]{0,400}[A-Za-z])[A-Za-z0-9_+=-]{24,}+["']?(?![\w/.:])"""),
)


def is_secret(name: str) -> bool:
    """Say whether a variable, setting or option of this name holds a secret."""
    return bool(_NAME.search(name.lstrip("-+~").replace("-", "_")) or _CAMEL_NAME.search(name))


def redact(text: str) -> str:
    """Return a text with every secret in it hidden that is known by its name or form."""
    return _short_redacted(text) if len(text) <= _SHORT else _redacted(text)


@lru_cache(maxsize=8192)
def _short_redacted(text: str) -> str:
    """Return what `_redacted` does: the runs of a page have most of their settings in common."""
    return _redacted(text)


def _redacted(text: str) -> str:
    text = "\n".join(map(_shortened, text.split("\n"))) if len(text) > _LONGEST_LINE else text
    for form in _FORMS:
        text = form.sub(HIDDEN, text)
    for before in (_HEADER, _AFTER, _PIPED, _LOGIN, _REST):
        text = before.sub(lambda match: match[1] + ("" if match[1][-1] in " \t=(-u:" else " ") + HIDDEN, text)
    for command, option in _PROGRAM_WORDS:
        text = command.sub(partial(_hide_options, option), text)
    for named in _NAMED:
        text = _hide_values(text, named)
    return text


def _shortened(line: str) -> str:
    """Return a line whose end is left out where it is too long to be looked through in time."""
    if len(line) <= _LONGEST_LINE:
        return line
    return f"{line[:_LONGEST_LINE]} ... ({len(line) - _LONGEST_LINE} characters left out)"


def redact_value(value: Any) -> Any:
    """Return a value of JSON or YAML with the secrets in it hidden: texts, and what keys name as secret."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {redact(key) if isinstance(key, str) else key:
                _hidden(item) if is_secret(str(key)) else redact_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_redact_word(_before(value, index), item) if isinstance(item, str) else redact_value(item)
                for index, item in enumerate(value)]
    return value


def _hidden(value: Any) -> Any:
    """Return what a secret's name holds with every text and number in it hidden, however deep it lies."""
    if isinstance(value, Mapping):
        return {redact(key) if isinstance(key, str) else key: _hidden(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(item) for item in value]
    return value if value is None or isinstance(value, bool) else HIDDEN


def _before(words: Sequence[Any], index: int) -> list[Any]:
    """Return what says of which kind an item of a command is: its program, where it has one, and the word before."""
    program = index > 1 and not str(words[0]).startswith("-")
    return [*words[: 1 if program else 0], *words[max(0, index - 1): index]]


def _redact_word(before: list[Any], word: str) -> str:
    """Return an item of a list with its secrets hidden; where it is one of a command, `before` tells more of it."""
    if not before or not all(isinstance(each, str) and re.fullmatch(r"\S+", each) for each in before):
        return redact(word)
    if re.fullmatch(r"--?[^=]+", before[-1]) and is_secret(before[-1]) and not word.startswith("-"):
        return HIDDEN
    words = f"{' '.join(before)} "
    text, shown = redact(words + redact(word)), redact(words)  # the word before may hold a secret of its own
    return text.removeprefix(shown) if text.startswith(shown) else HIDDEN


def _hide_options(option: re.Pattern[str], command: re.Match[str]) -> str:
    return option.sub(rf"\1{HIDDEN}", command[0])


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
