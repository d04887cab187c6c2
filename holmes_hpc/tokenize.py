"""`holmes tokenize OUT FILE...`: text or conversations made into one token file, before a job holds nodes for it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from holmes_hpc.config.schema import SPECIAL_TOKENS
from holmes_hpc.data.parts import make_tokens, parts_folder
from holmes_hpc.data.settings import ARGUMENTS, SourceSettings
from holmes_hpc.errors import ConfigurationError, DataError, HolmesError
from holmes_hpc.paths import check_output
from holmes_hpc.program import report, run_program
from holmes_hpc.values.packings import FORMATS
from holmes_hpc.words import counted, size_words

_SAY_SECONDS = 2.0
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    arguments = _parser().parse_intermixed_args(argv)
    try:
        return _tokenize(arguments)
    except HolmesError as error:
        # Data are what was named here, not what a run met.
        status = report("tokenize", ConfigurationError(str(error)) if isinstance(error, DataError) else error)
    except KeyboardInterrupt:
        sys.stderr.write("holmes tokenize: interrupted\n")
        status = _INTERRUPTED
    kept = parts_folder(arguments.output) if arguments.output.name else None
    if kept is not None and kept.is_dir():
        sys.stderr.write(f"holmes tokenize: what was made is kept in {kept}: the same command goes on with the rest, "
                         "and removes it at its end\n")
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="holmes tokenize", description=(
        "Make one token file, for data=tokens, of text files, or rows of jsonl and Parquet. What was begun is gone on "
        "with by the same command."))
    parser.add_argument("output", metavar="OUT", type=Path, help="the token file, usually named *.tokens")
    parser.add_argument("inputs", metavar="FILE", nargs="+", help="files, or folders of them")
    parser.add_argument("--tokenizer", help="tokenizer.json, or the folder of a model; default: one byte is one token")
    parser.add_argument("--chat", action="store_true", help="rows are conversations; the assistant's tokens count")
    parser.add_argument("--chat-template", help="file with the chat template; default: that of the tokenizer's folder")
    parser.add_argument("--pattern", help="names of the files in folders; default: *.txt, with --chat *.jsonl")
    parser.add_argument("--format", choices=FORMATS, default="auto", help="what the files are; default: by endings")
    parser.add_argument("--text-field", default="text", help="field of a row with the text; default: %(default)s")
    parser.add_argument("--messages-field", default="messages", help="field with the messages; default: %(default)s")
    parser.add_argument("--end-of-document", help="token after every document, such as '<|endoftext|>'")
    parser.add_argument("--special-tokens", choices=SPECIAL_TOKENS, default="text",
                        help="what becomes of a text that spells a special token: text as any other, or that token")
    parser.add_argument("--add-special-tokens", action=argparse.BooleanOptionalAction,
                        help="put around every document what the tokenizer puts around a text; default: where "
                             "--tokenizer is a folder")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)),
                        help="default: as many as there are cores (%(default)s)")
    return parser


def _tokenize(arguments: argparse.Namespace) -> int:
    if arguments.processes < 1:
        raise ConfigurationError(f"--processes {arguments.processes}: at least 1 is needed.")
    check_output(arguments.output, "OUT")
    kind = "chat" if arguments.chat else "text"
    if arguments.chat and not arguments.tokenizer:
        raise ConfigurationError("--chat needs --tokenizer: the folder of the model whose tokenizer and chat template "
                                 "are used.")
    sources = [SourceSettings(
        ARGUMENTS, kind, path, pattern=arguments.pattern or ("*.jsonl" if arguments.chat else "*.txt"),
        tokenizer=arguments.tokenizer, end_of_document=arguments.end_of_document,
        special_tokens=arguments.special_tokens, add_special_tokens=arguments.add_special_tokens,
        format=arguments.format, text_field=arguments.text_field, messages_field=arguments.messages_field,
        chat_template=arguments.chat_template) for path in arguments.inputs]
    try:
        tokens, documents, notes = make_tokens(arguments.output, sources, arguments.processes, _Progress().tell)
    except OSError as error:
        raise DataError(f"{arguments.output} cannot be written: {error.strerror or error}. Name a file in a folder "
                        "that you may write and that has room.") from error
    for note in notes:
        sys.stderr.write(f"holmes tokenize: {note}\n")
    sys.stdout.write(f"{arguments.output}: {tokens} tokens in {counted(documents, 'document')}; use it with "
                     f"data=tokens data.path={arguments.output}\n")
    return 0


class _Progress:
    """Says now and then how far the work is."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._said = self._began
        self._before: int | None = None

    def tell(self, done: int, total: int) -> None:
        """Take the bytes that are done and those of all files."""
        now = time.monotonic()
        if self._before is None:
            self._before = done
            if done:
                sys.stderr.write(f"holmes tokenize: goes on where it ended, at {size_words(done)} of "
                                 f"{size_words(total)}\n")
        elif now > self._said + _SAY_SECONDS:
            self._said = now
            rate = (done - self._before) / (now - self._began)
            left = (total - done) / rate if rate else 0.0
            sys.stderr.write(f"holmes tokenize: {size_words(done)} of {size_words(total)}, {size_words(rate)}/s, about "
                             f"{left:.0f} s left\n")


if __name__ == "__main__":
    sys.exit(run_program("tokenize", main))
