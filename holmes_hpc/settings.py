"""`holmes settings [WORD ...]`: every setting with its default, what it takes and what it means."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from holmes_hpc.config.describe import near
from holmes_hpc.config.folders import package_folder
from holmes_hpc.config.help import key_lines
from holmes_hpc.config.listing import listed_settings
from holmes_hpc.config.reference import reference_text
from holmes_hpc.errors import ConfigurationError, HolmesError
from holmes_hpc.program import report, run_program


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 2 where no setting has the words."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="holmes settings", description=(
        "Every setting with its default, what it takes and what it means; with words those that hold all of them."))
    parser.add_argument("words", nargs="*", metavar="WORD", help="a part of a setting's name or of its meaning")
    parser.add_argument("--markdown", action="store_true", help="print the reference page of the documentation")
    arguments = parser.parse_args(argv)
    try:
        sys.stdout.write(reference_text(package_folder()) if arguments.markdown else _found(arguments.words))
    except HolmesError as error:
        return report("settings", error)
    return 0


def _found(words: Sequence[str]) -> str:
    every = listed_settings(package_folder())
    found = [each for each in every
             if all(word.lower() in f"{each.path} {each.setting.help} {each.takes}".lower() for word in words)]
    if not found:
        names = {part for each in every for part in (each.path, each.path.rpartition(".")[2])}
        raise ConfigurationError(f"no setting has {' and '.join(words)} in its name or meaning."
                                 f"{near(words[-1], names)} `holmes settings` lists all.")
    return "\n".join(line for each in found for line in key_lines(each)) + "\n"


if __name__ == "__main__":
    sys.exit(run_program("settings", main))
