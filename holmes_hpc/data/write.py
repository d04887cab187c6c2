"""`python -m holmes_hpc.data.write OUT TEXT...`: write text files as one token file, before a job needs it."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from holmes_hpc.config.schema import SPECIAL_TOKENS
from holmes_hpc.data.settings import ARGUMENTS, SourceSettings
from holmes_hpc.data.text import TextRecipe, spelled_in_words, text_files, tokenise
from holmes_hpc.data.token_file import SUFFIX, TokenFileWriter
from holmes_hpc.data.tokenizer import load_tokenizer
from holmes_hpc.errors import DataError, HolmesError
from holmes_hpc.paths import check_output

_LOG = logging.getLogger(__name__)


def write_text(output: Path, inputs: Sequence[Path], *, pattern: str = "*.txt", tokenizer: str | None = None,
               end_of_document: str | None = None, special_tokens: str = "text") -> int:
    """Write the tokens of files and folders of text, each file a document, as a token file; return their number.

    `tokenizer` is a file of the package `tokenizers`, None for bytes; `special_tokens` says what becomes of a text that
    spells one, `text` or `control`, and a line that it happened. Raises ConfigurationError when that package is
    missing, DataError for text or a tokenizer that cannot be used and for an output that cannot be written.
    """
    check_output(output, "output")
    loaded = load_tokenizer(tokenizer, end_of_document, "--tokenizer", "--end-of-document",
                            control=special_tokens == "control")
    try:
        with TokenFileWriter(output, loaded.vocab_size, loaded.identity) as writer:
            for path in inputs:
                settings = SourceSettings(ARGUMENTS, "text", str(path), pattern=pattern)
                tokenise(settings, text_files(settings), TextRecipe(loaded), writer)
    except OSError as error:
        raise DataError(f"{output} cannot be written: {error.strerror or error}. Name a file in a folder that exists, "
                        "that you may write, and that has room.") from error
    if said := spelled_in_words(loaded, special_tokens, "--special-tokens"):
        _LOG.warning("%s", said)
    return writer.num_tokens


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m holmes_hpc.data.write",
                                     description="Write text files as one token file, for data=tokens.")
    parser.add_argument("output", type=Path, help=f"the token file, usually named *{SUFFIX}")
    parser.add_argument("inputs", type=Path, nargs="+", help="text files, or folders of them")
    parser.add_argument("--tokenizer", help="a file of the package `tokenizers`; default: one byte is one token")
    parser.add_argument("--pattern", default="*.txt", help="names of the files to read in folders; default: *.txt")
    parser.add_argument("--end-of-document", help="token after every file, such as '<|endoftext|>'; default: none")
    parser.add_argument("--special-tokens", choices=SPECIAL_TOKENS, default="text",
                        help="what becomes of a text that spells a special token: text as any other, or that token")
    chosen = parser.parse_args(arguments)
    try:
        count = write_text(chosen.output, chosen.inputs, pattern=chosen.pattern, tokenizer=chosen.tokenizer,
                           end_of_document=chosen.end_of_document, special_tokens=chosen.special_tokens)
    except HolmesError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    sys.stdout.write(f"{chosen.output}: {count} tokens; use it with data=tokens data.path={chosen.output}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
