"""What scripts and notebooks call: `compose`, `plan`, `train`. They are names of the package itself too.

Nothing here prints, and nothing needs the main thread or minds a running event loop: `train` starts a process of its
own, whose signals, forks and output concern nobody else.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from omegaconf import DictConfig, OmegaConf

from holmes_hpc import errors
from holmes_hpc.config.check import check
from holmes_hpc.config.compose import compose as compose_overrides
from holmes_hpc.config.given import overrides_of
from holmes_hpc.errors import ConfigurationError, HolmesError, RunFailedError
from holmes_hpc.runs import RunFolder, read_metrics, read_result

if TYPE_CHECKING:
    from holmes_hpc.values import Plan

Config = DictConfig
"""A composed and checked configuration; `config.train.steps` reads a setting."""
Settings = str | Sequence[str] | Mapping[str, Any] | DictConfig
"""Overrides as on the command line, a mapping of settings, or a Config."""

_HYDRA = threading.Lock()
"""Hydra composes for one thread of a process at a time."""
_LAST_LINES = 20
_LONGEST_LINE = 65536
_PROGRAM = ("import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
            "from holmes_hpc.scripted import main; sys.exit(main(sys.argv[2:]))")
"""Run by `python -c`, so that the process finds modules where the script does."""


@dataclass(frozen=True)
class Result(os.PathLike[str]):
    """How a run ended, or that it was submitted. It stands for its folder: `analysis.load(result)`."""

    folder: Path
    status: str
    """`completed`, `preempted`, or `submitted` for a job that was not followed to its end"""
    steps: int
    tokens_per_second: float | None
    """median over the steps after the first ones"""
    final_loss: float | None
    """nats a token, of the last step"""
    emulated: bool
    timed: bool = False
    """whether it was a wind tunnel, whose ranks wait instead of computing"""
    no_speed: str | None = None
    """of a wind tunnel without tokens/s: why it has none"""

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """One mapping a step, as in metrics.jsonl."""
        return read_metrics(RunFolder(self.folder))

    @property
    def plan(self) -> Plan:
        """The plan that was run."""
        from holmes_hpc.runs.plans import read_plan

        return read_plan(self.folder / "plan.json")


def compose(settings: Settings = (), *, cluster_required: bool = True) -> Config:
    """Return the checked configuration of `settings`; of a Config a checked copy.

    `cluster_required=False` composes without a cluster too. Raises ConfigurationError, whose message names the setting.
    """
    with _HYDRA:
        if isinstance(settings, DictConfig):
            config: DictConfig = settings.copy()
            check(config, cluster_required=cluster_required)
            return config
        return compose_overrides(overrides_of(settings), cluster_required=cluster_required)


def plan(settings: Settings) -> Plan:
    """Return the plan that `holmes plan` would print; nothing is started.

    Raises ConfigurationError for wrong settings, PlanRefusedError where no plan exists.
    """
    from holmes_hpc import planner

    return planner.plan(compose(settings))


def train(settings: Settings, *, show: bool = False) -> Result:
    """Train as `holmes train` does, wait for the end, and return how it went.

    On Slurm `launch.wait=false` returns once the job is submitted. `show` passes what the command prints on to
    `sys.stdout`. An interruption (Ctrl-C, a notebook's stop) ends a run on this machine and leaves a submitted one.
    Raises ConfigurationError, PlanRefusedError or LaunchImpossibleError before anything starts; RunFailedError, whose
    `folder` is the run's, where it fails.
    """
    config = compose(settings)
    if config.launch.dry_run:
        raise ConfigurationError("launch.dry_run=true: no run comes of it; use holmes_hpc.plan, or leave it out.")
    with tempfile.TemporaryDirectory(prefix="holmes-") as place:
        answer_path = Path(place, "answer.json")
        said = _follow(_start(answer_path), OmegaConf.to_yaml(config), show=show)
        answer = json.loads(answer_path.read_text()) if answer_path.exists() else {}
    folder = RunFolder(Path(answer["folder"])) if answer.get("folder") else None
    if "error" in answer:
        kind = getattr(errors, answer["error"], HolmesError)
        raise _with_folder(kind(answer["message"]), folder)
    result = (folder and read_result(folder)) or {}
    if folder is None or answer.get("status") not in (0, errors.PREEMPTED):
        raise _with_folder(RunFailedError(result.get("error") or f"the run did not end well; it said:\n{said}"), folder)
    return Result(folder.path, str(result.get("status") or "submitted"), int(result.get("steps") or 0),
                  result.get("tokens_per_second_median"), result.get("final_loss"), bool(result.get("emulated")),
                  bool(result.get("timed")), result.get("no_speed"))


def _with_folder(error: HolmesError, folder: RunFolder | None) -> HolmesError:
    if isinstance(error, RunFailedError) and folder is not None:
        error.folder = folder.path
    return error


def _start(answer_path: Path) -> subprocess.Popen[str]:
    """Start the process that runs the command; the terminal's signals reach only us."""
    words = [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), str(os.getpid()), str(answer_path)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            errors="replace", start_new_session=True)


def _follow(process: subprocess.Popen[str], config: str, *, show: bool) -> str:
    """Give the process its configuration, wait for its end, and return the end of what it said.

    Whatever interrupts us interrupts it, and its end is waited for.
    """
    stdin, stdout = cast(TextIO, process.stdin), cast(TextIO, process.stdout)
    said: deque[str] = deque(maxlen=_LAST_LINES)
    try:
        with suppress(BrokenPipeError):  # it ended before it read anything, and has said why
            stdin.write(config)
            stdin.close()
        for line in iter(lambda: stdout.readline(_LONGEST_LINE), ""):
            said.append(line)
            if show:
                sys.stdout.write(line)
        process.wait()
    except BaseException:
        process.send_signal(signal.SIGINT)
        while stdout.read(_LONGEST_LINE):
            pass
        process.wait()
        raise
    finally:
        stdout.close()
    return "".join(said)
