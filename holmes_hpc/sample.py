"""`holmes sample RUN|FOLDER TEXT`: continue a text with a checkpoint or a published model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from holmes_hpc.config.folders import default_runs_folder
from holmes_hpc.config.places import named_in
from holmes_hpc.errors import ConfigurationError, DataError, HolmesError
from holmes_hpc.program import report, run_program
from holmes_hpc.quoting import for_terminal


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="holmes sample",
                                     description="Continue a text, in one process.")
    parser.add_argument("model", metavar="RUN|FOLDER", help="a run (its folder, job id or name), or the folder of a "
                                                            "published model")
    parser.add_argument("text", metavar="TEXT", help="what is to be continued")
    parser.add_argument("--tokens", type=int, default=64, help="most tokens to add (%(default)s)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 takes the likeliest (%(default)s)")
    parser.add_argument("--top-p", type=float, default=1.0, help="draw among the fewest tokens that together are so "
                                                                 "likely (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (%(default)s)")
    parser.add_argument("--tokenizer", help="tokenizer.json, or a model's folder; default: the run's or folder's own")
    parser.add_argument("--step", type=int, help="step of the checkpoint; default: the newest")
    parser.add_argument("--folder", type=Path, default=default_runs_folder(), help="where runs lie (%(default)s)")
    arguments = parser.parse_args(argv)
    try:
        return _sample(arguments)
    except DataError as error:  # what was named, not what a run met
        return report("sample", ConfigurationError(str(error)))
    except HolmesError as error:
        return report("sample", error)


def _sample(arguments: argparse.Namespace) -> int:
    from holmes_hpc.data.tokenizer import load_tokenizer
    from holmes_hpc.engine.sampling import continue_tokens
    from holmes_hpc.engine.whole_model import find_origin_of_model, load_model, settings_of

    _check(arguments)
    origin = find_origin_of_model(arguments.model, arguments.folder, arguments.step)
    config, architecture = settings_of(origin, [] if origin.index else ["data=text", "data.path=."])
    path = arguments.tokenizer or named_in(config.data, "tokenizer")
    key = "--tokenizer" if arguments.tokenizer else "data.tokenizer"
    try:
        tokenizer = load_tokenizer(path, key=key, control=True)
    except DataError as error:
        other = "" if arguments.tokenizer else " Or name the model's tokenizer by --tokenizer."
        raise ConfigurationError(f"{origin.words}: {error}{other}") from error
    if tokenizer.vocab_size > architecture.vocab_size:
        raise ConfigurationError(f"{key}={path} has {tokenizer.vocab_size} tokens, and the model "
                                 f"{architecture.vocab_size}: it is not the model's. Name its own.")
    prompt = [*tokenizer.before.tolist(), *tokenizer.encode(arguments.text.encode()).tolist()]
    if not prompt:
        raise ConfigurationError("TEXT is empty, and the tokenizer begins no text by itself. Give a text.")
    longest = architecture.sequence_length
    if len(prompt) + arguments.tokens > longest:
        raise ConfigurationError(f"TEXT has {len(prompt)} tokens, and --tokens {arguments.tokens} more are beyond the "
                                 f"{longest} of model.sequence_length. Set --tokens to at most "
                                 f"{max(0, longest - len(prompt))}, or give a shorter text.")
    model = load_model(origin, architecture)
    ends = tokenizer.after.tolist()
    found = list(continue_tokens(model, prompt, arguments.tokens, temperature=arguments.temperature,
                                 top_p=arguments.top_p, seed=arguments.seed, ends=ends,
                                 num_tokens=tokenizer.vocab_size))
    sys.stdout.write(for_terminal(arguments.text + tokenizer.decode(found)) + "\n")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    for name, value, fits, wanted in (
            ("--tokens", arguments.tokens, arguments.tokens >= 1, "at least 1"),
            ("--temperature", arguments.temperature, 0.0 <= arguments.temperature <= 100.0, "from 0 to 100"),
            ("--top-p", arguments.top_p, 0.0 < arguments.top_p <= 1.0, "above 0, up to 1"),
            ("--seed", arguments.seed, 0 <= arguments.seed < 2**63, "from 0 to 2^63 - 1")):
        if not fits:
            raise ConfigurationError(f"{name} {value}: expected a number {wanted}.")


if __name__ == "__main__":
    sys.exit(run_program("sample", main))
