"""Conversations become tokens: rendered by the chat template, counted where the assistant speaks."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from holmes_hpc.data.chat.rendering import Renderer, RenderingError
from holmes_hpc.data.chat.template import ChatTemplate, find_template
from holmes_hpc.data.formats import WHOLE_FILE, Row, Stretch, bad_row, format_of, rows
from holmes_hpc.data.settings import SourceSettings
from holmes_hpc.data.text import tokenizer_of
from holmes_hpc.data.token_file import TokenFileWriter
from holmes_hpc.data.tokenizer import FileTokenizer
from holmes_hpc.errors import ConfigurationError, DataError
from holmes_hpc.words import counted

_FIRST_STANDIN = 0xF0100
"""What stands for a special token that a message spells, while a template renders it: a private character for each."""
_PRIVATE = re.compile("[\U000f0000-\U000fffff]")


def touched(places: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> NDArray[numpy.uint8]:
    """Return for each place of a token, from its first character to behind its last, whether a span shares one with it.

    `spans` are in order and do not overlap. A token that begins with the template's blank and goes on with the first
    word is said by the assistant. Each is looked up, so that a conversation of thousands of turns takes no hours.
    """
    firsts, lasts = numpy.array(places, dtype=numpy.int64).reshape(-1, 2).T
    begins, ends = numpy.array(spans, dtype=numpy.int64).reshape(-1, 2).T
    return (numpy.searchsorted(begins, lasts, "left") > numpy.searchsorted(ends, firsts, "right")).astype(numpy.uint8)


class ChatRecipe:
    """Every row a document: a conversation, of which the assistant's words and what ends them count as targets."""

    counts = True

    def __init__(self, tokenizer: FileTokenizer, template: ChatTemplate, *, control: bool) -> None:
        """Take the tokenizer and the template; `control`: special tokens that messages spell become those tokens."""
        self.tokenizer, self._template = tokenizer, template
        self._left_out: Counter[str] = Counter()
        self._silent = 0
        special = () if control else tokenizer.special
        self._standins = {chr(_FIRST_STANDIN + number): name for number, name in enumerate(special)}
        self._names = {name: standin for standin, name in self._standins.items()}
        self._spelled = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        self._ends = re.compile(r"\s*(" + ("|".join(map(re.escape, tokenizer.special)) or r"(?!)") + ")")

    @classmethod
    def of(cls, settings: SourceSettings) -> ChatRecipe:
        """Return the recipe of a source. Raises ConfigurationError, or DataError, where it lacks what it needs."""
        tokenizer = tokenizer_of(settings)
        if not isinstance(tokenizer, FileTokenizer):
            raise ConfigurationError(f"{settings.key('name')}=chat needs {settings.key('tokenizer')}: the folder of "
                                     "the model whose tokenizer and chat template are to be used.")
        return cls(tokenizer, find_template(settings), control=settings.special_tokens == "control")

    def words(self) -> tuple[object, ...]:
        """Return what the tokens depend on beside the files and the tokenizer."""
        return ("chat", 2, self._template.text, sorted(self._template.variables.items()))

    def write(self, settings: SourceSettings, file: Path, writer: TokenFileWriter, advance: Callable[[int], None],
              stretch: Stretch = WHOLE_FILE) -> None:
        """Write the conversations of a file. Raises DataError with file and line for one that cannot be used."""
        if format_of(settings, file) == "plain":
            raise DataError(f"{settings.key('path')}={settings.path}: {file} is neither jsonl nor Parquet by its name. "
                            f"Set {settings.key('format')} to jsonl or parquet, or {settings.key('pattern')} to the "
                            "names of the files with conversations.")
        with Renderer(self._template.text, self._template.variables, self._template.origin) as renderer:
            for row in rows(settings, file, stretch):
                messages = self._messages(settings, row)
                if any(message["role"] == "assistant" for message in messages):
                    try:
                        self._conversation(messages, self._tools(settings, row), renderer, writer)
                    except RenderingError as error:
                        raise bad_row(settings, row, str(error)) from error
                else:
                    self._left_out["without a turn of the assistant"] += 1
                advance(row.num_bytes)

    def notes(self, settings: SourceSettings) -> list[str]:
        """Return what a user should be told of the conversations written so far."""
        left_out = [f"{counted(count, 'conversation')} {why} {'was' if count == 1 else 'were'} left out"
                    for why, count in self._left_out.items()]
        count = sum(self.tokenizer.spelled.values())
        spelled = [f"messages spell special tokens {counted(count, 'time')}, which were read as text; "
                   f"{settings.key('special_tokens')}=control takes them for such tokens"] if count else []
        silent = [f"{counted(self._silent, 'turn')} of the assistant, without words or of which the template shows "
                  "none (calls of tools, for one), did not count; {% generation %} blocks in the template say what does"
                  ] if self._silent else []
        return left_out + silent + spelled

    def _messages(self, settings: SourceSettings, row: Row) -> list[dict[str, Any]]:
        """Return a row's messages, with stand-ins for the special tokens that they spell."""
        field = settings.messages_field
        messages = row.value.get(field)
        if not isinstance(messages, list) or not messages:
            raise bad_row(settings, row, f"has no list of messages in {settings.key('messages_field')}={field}")
        found = []
        for number, message in enumerate(messages, 1):
            if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
                raise bad_row(settings, row, f"has a message (number {number}) without a role")
            content = message.get("content")
            if isinstance(content, list):
                content = _joined(settings, row, f"a message (number {number}, {message['role']})", content)
            if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
                raise bad_row(settings, row, f"has a message (number {number}, {message['role']}) whose content is no "
                                             "text")
            kept = {name: content if name == "content" else value for name, value in message.items()
                    if value is not None or name == "content"}
            found.append(self._with_standins(settings, row, f"a message (number {number})", kept))
        return found

    def _tools(self, settings: SourceSettings, row: Row) -> Any:
        """Return the tools that a row offers, None where it has none; some files have them as a text of JSON."""
        tools = row.value.get("tools")
        try:
            tools = json.loads(tools) if isinstance(tools, str) and tools else tools
        except (ValueError, RecursionError) as error:
            raise bad_row(settings, row, "has tools that are no JSON") from error
        if tools and not isinstance(tools, list):
            raise bad_row(settings, row, "has tools that are no list")
        return self._with_standins(settings, row, "tools", tools) if tools else None

    def _with_standins(self, settings: SourceSettings, row: Row, what: str, value: Any) -> Any:
        """Return a value of JSON with stand-ins for the special tokens that any text in it spells."""
        if isinstance(value, dict):
            return {self._with_standins(settings, row, what, name): self._with_standins(settings, row, what, each)
                    for name, each in value.items()}
        if isinstance(value, list):
            return [self._with_standins(settings, row, what, each) for each in value]
        if not isinstance(value, str):
            return value
        if _PRIVATE.search(value):
            raise bad_row(settings, row, f"has {what} with characters from U+F0000 to U+FFFFF, which belong to nobody "
                                         "and are needed here")
        return self._spelled.sub(lambda match: self._names[match[0]], value)

    def _conversation(self, messages: list[dict[str, Any]], tools: Any, renderer: Renderer,
                      writer: TokenFileWriter) -> None:
        text, spans, exact = renderer.render(messages, tools)
        if not exact:
            spans = [(begin, self._end(text, end)) for begin, end in spans if end > begin]
            self._silent += max(0, sum(message["role"] == "assistant" for message in messages) - len(spans))
        if not spans:
            self._left_out["of which the template shows nothing that the assistant wrote"] += 1
            return
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise RenderingError("has half a character (a lone surrogate)") from error
        for ids, places in self._encoded(text):
            writer.write(numpy.array(ids, dtype=numpy.uint32), touched(places, spans))
        writer.end_document()

    def _end(self, text: str, end: int) -> int:
        """Return the end of a turn: behind the special token that follows the words, which the model has to say too."""
        match = self._ends.match(text, end)
        return match.end() if match else end

    def _encoded(self, text: str) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
        """Yield tokens and the characters of each: the template's special tokens as such, others as text."""
        at = 0
        for piece in re.split("([" + "".join(self._standins) + "])", text) if self._standins else [text]:
            if piece in self._standins:
                ids = self.tokenizer.encode(self._standins[piece].encode()).tolist()
                yield ids, [(at, at + 1)] * len(ids)
            elif piece:
                ids, places = self.tokenizer.encode_control(piece)
                yield ids, [(at + begin, at + end) for begin, end in places]
            at += len(piece)


def _joined(settings: SourceSettings, row: Row, what: str, parts: list[Any]) -> str:
    """Return the text of a content that is a list of parts, one behind the other as they stand.

    Raises DataError for a part of another kind than text, by its name.
    """
    texts = []
    for number, part in enumerate(parts, 1):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            known = f"of kind {str(kind)[:60]}" if isinstance(kind, str) else "without a type"
            raise bad_row(settings, row, f"has {what} whose part {number} is {known}; parts of kind text are read, and "
                                         "no others")
        if not isinstance(part.get("text"), str):
            raise bad_row(settings, row, f"has {what} whose part {number} has no text")
        texts.append(part["text"])
    return "".join(texts)
