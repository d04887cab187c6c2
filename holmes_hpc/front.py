"""The way into every command that composes a configuration: arguments, checks, Hydra, exit status.

Hydra exits with 1 for bad overrides and accepts unknown keys written with `+`. So every job is composed and checked
here before Hydra starts, and whatever is wrong becomes one message on stderr and exit status 2.
"""

from __future__ import annotations

import functools
import logging
import math
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from holmes_hpc import early
from holmes_hpc.config.check import check
from holmes_hpc.config.compose import (
    CONFIG_NAME,
    HYDRA_VERSION_BASE,
    compose,
    compose_job,
    compose_sweep,
    register,
)
from holmes_hpc.config.folders import package_folder
from holmes_hpc.config.help import help_text
from holmes_hpc.config.written_files import text_as_written, text_as_yaml_reads_it
from holmes_hpc.config.written_overrides import as_written
from holmes_hpc.errors import FAILED, INTERRUPTED, PREEMPTED, WRONG, ConfigurationError, HolmesError, JobFailedError
from holmes_hpc.program import flushed, open_streams, redacted_output, report, report_fault, status_of
from holmes_hpc.redaction import RedactingFormatter, redact
from holmes_hpc.runs.place import check_place

STATES = {0: "done", FAILED: "failed", WRONG: "refused", PREEMPTED: "preempted", INTERRUPTED: "interrupted"}
"""What an exit status means, in a word."""
SWEEPS = "sweeps"
"""Where Hydra keeps its record of a sweep, below `run.folder`."""

Outcome = tuple[int, float | None]
"""What a command's action returns: its exit status, and tokens per second (None where nothing was trained)."""


Sweep = Callable[[Sequence[DictConfig], Sequence[str], Path], list[Outcome] | None]
"""Acts for all jobs of a sweep together: their configurations, their overrides, a folder for the sweep; None: act for
one after another."""


@dataclass(frozen=True)
class Command:
    """A verb: its name, what it does in one line, its action, and whether it needs a cluster."""

    verb: str
    summary: str
    action: Callable[[DictConfig], Outcome]
    cluster_required: bool = True
    sweep: Sweep | None = None


@dataclass
class _Jobs:
    """What became of the jobs of one call: the overrides of each and its outcome."""

    outcomes: list[tuple[str, Outcome]] = field(default_factory=list)
    started: bool = False
    shown: bool = False

    @property
    def status(self) -> int:
        """The exit status of the command: that of its only job; for a sweep 1 when a job failed."""
        statuses = [status for _, (status, _) in self.outcomes]
        if len(statuses) == 1:
            return statuses[0]
        return FAILED if any(statuses) else 0


def main(command: Command, argv: Sequence[str] | None = None) -> int:
    """Run a command with `argv` (default: the process's arguments) and return its exit status."""
    early.ready()
    open_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    with logging_to_stderr(command.verb):
        try:
            return flushed(_main(command, arguments))
        except HolmesError as error:
            return report(command.verb, error)
        except OSError as error:
            return report_fault(command.verb, error)
        except KeyboardInterrupt:
            sys.stderr.write(f"holmes {command.verb}: interrupted\n")
            return INTERRUPTED


def complete(command: Command, argv: Sequence[str]) -> int:
    """Let Hydra answer the shell's completion, or install it, for the program `holmes`."""
    return _run_hydra(command, ["holmes", *argv], _Jobs())


def _main(command: Command, argv: list[str]) -> int:
    parser = get_args_parser()
    parser.allow_abbrev = False
    parser.prog, parser.usage = f"holmes {command.verb}", f"holmes {command.verb} [-m] +cluster=NAME [KEY=VALUE ...]"
    arguments = parser.parse_intermixed_args(argv)
    argv = [text for text in argv if text not in arguments.overrides]
    arguments.overrides = as_written(arguments.overrides)
    argv += arguments.overrides
    if arguments.help:
        sys.stdout.write(help_text(command.verb, command.summary, package_folder()))
        return 0
    _refuse_options(arguments)
    jobs = _Jobs()
    if not (arguments.hydra_help or arguments.shell_completion or arguments.info):
        config = _check_before(command, arguments)
        if config is not None:
            return _run_alone(command, config)
    status = _run_hydra(command, [f"holmes {command.verb}", *argv], jobs)
    sys.stdout.flush()
    if len(jobs.outcomes) > 1 and not jobs.shown:
        sys.stderr.write(_table(jobs))
    return status


@contextmanager
def logging_to_stderr(verb: str) -> Iterator[None]:
    """Send what the library logs to stderr meanwhile, as the command's own words.

    Afterwards all is as before, the root logger too, which Hydra gives handlers of its own.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter(f"holmes {verb}: %(message)s"))
    ours, root = logging.getLogger("holmes_hpc"), logging.getLogger()
    before = [(logger, logger.handlers[:], logger.level, logger.propagate) for logger in (ours, root)]
    ours.handlers[:], ours.propagate = [handler], False
    ours.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, handlers, level, propagate in before:
            logger.handlers[:], logger.propagate = handlers, propagate
            logger.setLevel(level)


def _refuse_options(arguments: Namespace) -> None:
    """Refuse those of Hydra's options that would bypass the schema or the search path."""
    if arguments.config_dir:
        raise ConfigurationError(f"--config-dir: write hydra.searchpath=[{arguments.config_dir}] instead.")
    for option in ("config_path", "config_name", "experimental_rerun"):
        if getattr(arguments, option):
            raise ConfigurationError(
                f"--{option.replace('_', '-')} is not used here: give overrides such as +cluster=mixed, and your own "
                "cluster files by hydra.searchpath=[FOLDER]."
            )


def _check_before(command: Command, arguments: Namespace) -> DictConfig | None:
    """Compose and check every job before the first one starts.

    Return the configuration of a single job that needs nothing more of Hydra, which would compose it twice again.
    """
    overrides = list(arguments.overrides)
    if arguments.cfg and not arguments.multirun:
        compose(overrides, cluster_required=False)
        return None
    if not (arguments.multirun or any(text.strip("+").startswith("hydra.mode=MULTIRUN") for text in overrides)):
        config, asks_hydra = compose_job(overrides, cluster_required=command.cluster_required)
        return None if asks_hydra else config
    if any(text.startswith("hydra/sweeper=") for text in overrides):
        return None  # only that sweeper knows its jobs; each is checked when it starts
    for config in compose_sweep(overrides, cluster_required=command.cluster_required and not arguments.cfg):
        check_place(Path(config.run.folder), SWEEPS)
    return None


def _run_alone(command: Command, config: DictConfig) -> int:
    """Act for a single job; an error that nobody foresaw shows its traceback, as under Hydra."""
    try:
        return _act(command, config)[0]
    except Exception:
        traceback.print_exc()
        return FAILED


def _run_hydra(command: Command, argv: list[str], jobs: _Jobs) -> int:
    """Let Hydra take the command line `argv`, program first, and run the jobs; return the exit status."""

    def task(config: DictConfig) -> float | None:
        jobs.started = True
        with text_as_yaml_reads_it():
            outcome = _act(command, config, HydraConfig.get().overrides.task)
        jobs.outcomes.append((redact(" ".join(HydraConfig.get().overrides.task)), outcome))
        if outcome[0] == INTERRUPTED:
            raise SystemExit(INTERRUPTED)
        if not outcome[0] or HydraConfig.get().mode != RunMode.MULTIRUN:
            return outcome[1]
        # Hydra's own sweeper would end with the first failure; others count them, as `max_failure_rate` says.
        if HydraConfig.get().runtime.choices.get("hydra/sweeper") != "basic":
            raise JobFailedError(f"{STATES.get(outcome[0], outcome[0])}, as the messages above say; "
                                 "hydra.sweeper.max_failure_rate=1 lets the sweep go on all the same")
        return float("nan")

    if command.sweep is not None:
        # Our launcher in hydra_plugins finds it here, the one thing of ours that Hydra hands to a launcher.
        vars(task)["sweep"] = functools.partial(_sweep, command, jobs)
    register()
    decorated = hydra.main(
        version_base=HYDRA_VERSION_BASE, config_path=str(package_folder()), config_name=CONFIG_NAME
    )(task)
    before, sys.argv = sys.argv, argv
    try:
        with text_as_written(), redacted_output() if _prints_settings(argv) else nullcontext():
            decorated()
    except SystemExit as end:
        if end.code == FAILED and not jobs.started:  # Hydra refused the arguments
            return WRONG
        return status_of(end) or jobs.status
    finally:
        sys.argv = before
    return jobs.status


def _prints_settings(argv: Sequence[str]) -> bool:
    """Say whether Hydra is asked to print the configuration (`--cfg job`, `--info`) instead of running a job."""
    arguments = get_args_parser().parse_args(argv[1:])
    return bool(arguments.cfg or arguments.info)


def _sweep(command: Command, jobs: _Jobs, configs: Sequence[DictConfig], words: Sequence[str], place: Path
           ) -> list[Outcome] | None:
    """Check every job of a sweep, as its sweeper made it, and act for all together if the command can.

    What concerns all of them is one message and ends the command: Hydra would show a traceback.
    """
    if command.sweep is None:
        raise TypeError(f"the command {command.verb} has no sweep")
    jobs.started = True
    words = [redact(each) for each in words]
    try:
        for config, word in zip(configs, words, strict=True):
            check(config, cluster_required=command.cluster_required, overrides=word.split())
        with text_as_yaml_reads_it():
            outcomes = command.sweep(configs, words, place)
    except HolmesError as error:
        raise SystemExit(report(command.verb, error)) from error
    except OSError as error:
        raise SystemExit(report_fault(command.verb, error)) from error
    if outcomes is not None:
        jobs.shown = True
        jobs.outcomes += zip(words, outcomes, strict=True)
    return outcomes


def _act(command: Command, config: DictConfig, overrides: Sequence[str] = ()) -> Outcome:
    """Check a job's configuration once more, as its sweeper made it, and act; report what a user can mend."""
    try:
        check(config, cluster_required=command.cluster_required, overrides=overrides)
        return command.action(config)
    except HolmesError as error:
        return report(command.verb, error), None
    except KeyboardInterrupt:
        return INTERRUPTED, None
    except OSError as error:
        return report_fault(command.verb, error), None


def _table(jobs: _Jobs) -> str:
    """Return a line for each job: its state, the tokens/s where commands tell them, and what not all have in common."""
    words = [each.split() for each, _ in jobs.outcomes]
    common = set[str]().union(*words).intersection(*words)
    differing = [" ".join(word for word in each if word not in common) for each in words]
    speeds = [speed for _, (_, speed) in jobs.outcomes]
    has_speeds = any(speed is not None for speed in speeds)
    rows = ["", f"{'state':<11}" + f"  {'tokens/s':>10}" * has_speeds + "  overrides"]
    for (_, (status, _)), speed, word in zip(jobs.outcomes, speeds, differing, strict=True):
        told = "-" if speed is None or math.isnan(speed) else f"{speed:,.0f}"
        rows.append(f"{STATES.get(status, str(status)):<11}" + f"  {told:>10}" * has_speeds + f"  {word}".rstrip())
    if common:
        rows.append(f"all: {' '.join(word for word in words[0] if word in common)}")
    return "\n".join(rows) + "\n"
