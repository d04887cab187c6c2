"""`holmes evaluate RUN|FOLDER [data=...]`: loss and perplexity of a checkpoint or of a published model, by source."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holmes_hpc.config.folders import default_runs_folder
from holmes_hpc.errors import ConfigurationError, DataError, HolmesError, TooFewTokensError
from holmes_hpc.program import report, run_program
from holmes_hpc.words import counted

if TYPE_CHECKING:
    from holmes_hpc.architecture import Architecture
    from holmes_hpc.data import Dataset

_SAY_SECONDS = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="holmes evaluate", description=(
        "Loss and perplexity on validation samples, in one process, a line a source."))
    parser.add_argument("model", metavar="RUN|FOLDER", help="a run (its folder, job id or name), or the folder of a "
                                                            "published model")
    parser.add_argument("overrides", metavar="data=...", nargs="*", help="settings of the data, as train takes them; "
                                                                         "default: those of the run")
    parser.add_argument("--step", type=int, help="step of the checkpoint; default: the newest")
    parser.add_argument("--all", action="store_true", help="every token of the data once, in place of validation "
                                                           "samples")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--folder", type=Path, default=default_runs_folder(), help="where runs lie (%(default)s)")
    arguments = parser.parse_intermixed_args(argv)  # options may stand among the settings
    try:
        return _evaluate(arguments)
    except DataError as error:  # what was named, not what a run met
        return report("evaluate", ConfigurationError(str(error)))
    except HolmesError as error:
        return report("evaluate", error)


def _evaluate(arguments: argparse.Namespace) -> int:
    from holmes_hpc.engine.evaluating import evaluate
    from holmes_hpc.engine.whole_model import find_origin_of_model, load_model, settings_of

    origin = find_origin_of_model(arguments.model, arguments.folder, arguments.step)
    config, architecture = settings_of(origin, arguments.overrides)
    everything, dataset = _open(arguments, config, architecture)
    for remark in dataset.remarks(doubts=True):  # how many samples there were stands in the result
        sys.stderr.write(f"holmes evaluate: {remark}\n")
    model = load_model(origin, architecture)
    size = config.parallel.micro_batch_size or 1
    number = None if everything else int(config.train.validation_samples)
    found = list(evaluate(model, dataset, number, size, _Progress().tell))
    if arguments.json:
        sys.stdout.write(json.dumps({"model": origin.words, "sources": [
            {"source": each.source, "loss": each.loss, "perplexity": each.perplexity, "tokens": each.counted,
             "samples": each.samples} for each in found]}, indent=1) + "\n")
        return 0
    sys.stdout.write(f"{origin.words}, {architecture.parameter_count():,} parameters\n")
    for each in found:
        sys.stdout.write(f"{each.source}: loss {each.loss:.5f}, perplexity {each.perplexity:.3f}, {each.counted} "
                         f"tokens of {counted(each.samples, 'sample')}\n")
    return 0


def _open(arguments: argparse.Namespace, config: Any, architecture: Architecture) -> tuple[bool, Dataset]:
    """Open the data; return it, and whether all of it is to be read, as where its parts are shorter than a sample."""
    from holmes_hpc.data import open_dataset, open_everything

    if not arguments.all:
        try:
            return False, open_dataset(config.data, architecture)
        except TooFewTokensError:
            dataset = open_everything(config.data, architecture)
            sys.stderr.write("holmes evaluate: the validation part is shorter than a sample, so all of the data is "
                             "read, as with --all\n")
            return True, dataset
    return True, open_everything(config.data, architecture)


class _Progress:
    """Says now and then how far it is."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def tell(self, source: str, done: int, of: int) -> None:
        """Hear of the samples that are done."""
        if done < of and time.monotonic() - self._said >= _SAY_SECONDS:
            self._said = time.monotonic()
            sys.stderr.write(f"holmes evaluate: {source}: {done} of {counted(of, 'sample')}\n")


if __name__ == "__main__":
    sys.exit(run_program("evaluate", main))
