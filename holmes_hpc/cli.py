"""The console script `holmes`: verbs, and shell completion under them."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from holmes_hpc import __version__
from holmes_hpc.program import run_program, status_of
from holmes_hpc.resources import put_analysis_first

HYDRA_VERBS = {"train": "holmes_hpc.train", "plan": "holmes_hpc.plan", "doctor": "holmes_hpc.doctor",
               "probe": "holmes_hpc.probe"}
"""Verbs that compose a configuration, and their modules, each with a COMMAND."""

PLAIN_VERBS = {"jobs": "holmes_hpc.jobs", "cancel": "holmes_hpc.cancel", "sweep": "holmes_hpc.sweep",
               "logs": "holmes_hpc.logs", "compare": "holmes_hpc.compare",
               "calibrate": "holmes_hpc.calibrate", "export": "holmes_hpc.export",
               "tokenize": "holmes_hpc.tokenize", "evaluate": "holmes_hpc.evaluate",
               "sample": "holmes_hpc.sample", "trace": "holmes_hpc.trace",
               "top": "holmes_hpc.top", "site": "holmes_hpc.site", "settings": "holmes_hpc.settings"}
"""Verbs with arguments of their own, and their modules, each with a `main`."""

ANALYSIS_VERBS = ("throughput", "report")
"""Verbs of the package `analysis`, each a module of that name with a `main`."""

VERBS = (*HYDRA_VERBS, *ANALYSIS_VERBS, *PLAIN_VERBS)

USAGE = """\
usage: holmes VERB [arguments]

  train +cluster=NAME [overrides]    plan one job over all partitions of the cluster, launch it, train
  plan +cluster=NAME [overrides]     print the plan and the rejected alternatives, launch nothing
  doctor [+cluster=NAME]             check this machine: one line a finding, with the remedy
  probe +cluster=NAME [overrides]    measure the links between the cluster's nodes
  throughput RUN...                  tables and pictures of finished or running runs
  jobs [RUN...] [--watch]            state, step, tokens/s and loss of submitted runs
  top RUN                            the ranks of a run, live: who computes, waits, and is slow
  cancel RUN...                      cancel the jobs of runs or of a sweep
  sweep SWEEP --resume               go on with a sweep: submit what is missing or has failed
  logs RUN [--rank N] [--follow]     what a run's batch script and ranks wrote
  calibrate RUN...                   correct the planner's speed of GPUs by what runs measured
  report RUN...                      one HTML page of runs: plan, figures, pictures, environment
  export RUN --to FOLDER             the trained model as a folder of Hugging Face
  compare A B                        two plans (JSON files or run folders) side by side, and what differs
  tokenize OUT FILE...               text or conversations made into one token file
  evaluate RUN|FOLDER [data=...]     loss and perplexity of a checkpoint or a published model
  sample RUN|FOLDER TEXT             continue a text
  trace RUN --step N                 a step's recorded timeline, for Perfetto
  site NAME                          write a first cluster file from what Slurm tells
  settings [WORD...]                 every setting with its default, what it takes and what it means

`holmes VERB --help` lists groups, options and keys. Completion: eval "$(holmes -sc install=bash)"
"""


def main() -> None:
    """Run `holmes` with the process's arguments, and exit."""
    sys.exit(run(sys.argv[1:]))


def run(argv: Sequence[str]) -> int:
    """Run `holmes` with `argv` and return its exit status."""
    return run_program(argv[0] if argv[:1] and argv[0] in VERBS else "", lambda: _run(argv))


def _run(argv: Sequence[str]) -> int:
    if argv[:1] in (["-sc"], ["--shell-completion"]):
        return _complete(list(argv))
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(USAGE)
        return 0
    if argv[0] == "--version":
        sys.stdout.write(f"holmes {__version__}\n")
        return 0
    verb, rest = argv[0], list(argv[1:])
    if verb in ANALYSIS_VERBS:
        return _run_analysis(verb, rest)
    if verb in PLAIN_VERBS:
        return _run_plain(verb, rest)
    if verb not in HYDRA_VERBS:
        sys.stderr.write(f"holmes: no verb {verb!r}.{_near(verb)} Valid: {', '.join(VERBS)}\n")
        return 2
    return _run_command(verb, rest)


def _near(verb: str) -> str:
    from holmes_hpc.config.describe import near

    return near(verb, VERBS)


def _run_command(verb: str, argv: list[str]) -> int:
    from holmes_hpc import front

    return front.main(importlib.import_module(HYDRA_VERBS[verb]).COMMAND, argv)


def _run_plain(verb: str, argv: list[str]) -> int:
    try:
        return int(importlib.import_module(PLAIN_VERBS[verb]).main(argv))
    except SystemExit as end:  # argparse: --help, or arguments that are wrong
        return status_of(end)


def _run_analysis(verb: str, argv: list[str]) -> int:
    """Run a module of `analysis`, which lies beside this package."""
    put_analysis_first()
    return int(importlib.import_module(f"analysis.{verb}").main(argv))


def _complete(argv: list[str]) -> int:
    """Answer the shell: verbs for the first word; under a verb Hydra answers, which is not told of the verb."""
    if len(argv) > 1 and argv[1].startswith("query="):
        words = os.environ.get("COMP_LINE", "").split(" ")
        if len(words) <= 2:
            sys.stdout.write(" ".join(verb for verb in VERBS if verb.startswith(words[-1])) + "\n")
            return 0
        if words[1] not in HYDRA_VERBS:
            return _complete_plain(words[1], words[-1])
        os.environ["COMP_LINE"] = " ".join([words[0], *words[2:]])
    return _hydra_completion(argv)


def _complete_plain(verb: str, word: str) -> int:
    """Answer the shell for a verb with arguments of its own."""
    from holmes_hpc.completion import completions

    if verb in VERBS:
        put_analysis_first()
        module = PLAIN_VERBS.get(verb, f"analysis.{verb}")
        sys.stdout.write(" ".join(completions(verb, word, importlib.import_module(module).main)) + "\n")
    return 0


def _hydra_completion(argv: list[str]) -> int:
    from holmes_hpc import front
    from holmes_hpc.train import COMMAND

    return front.complete(COMMAND, argv)


if __name__ == "__main__":
    main()
