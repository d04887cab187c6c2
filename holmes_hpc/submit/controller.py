"""Whether this machine has Slurm, and which partitions its controller knows; where it does not tell, why not."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holmes_hpc.cluster.slurm.records import CLUSTER_LINE
from holmes_hpc.foreign import ForeignError, read_text
from holmes_hpc.submit.commands import (
    MissingCommandError,
    SlowSlurmError,
    SlurmCommandError,
    TransientSlurmError,
    run_command,
)
from holmes_hpc.submit.patience import patiently

PATIENCE_SECONDS = 20.0
"""How long a controller is waited for before a run is refused."""

CONFIGURATIONS = (Path("/etc/slurm/slurm.conf"), Path("/etc/slurm-llnl/slurm.conf"), Path("/run/slurm/conf/slurm.conf"))
"""Where Slurm's own configuration lies by default, the last one where `configless` nodes keep it."""

QUESTION = ("sinfo", "--noheader", "--format=%R")
_UNCONFIGURED = re.compile(r"configuration source|(cannot|can't) stat file|unable to process configuration",
                           re.IGNORECASE)
_NO_MUNGE = re.compile(r"munge encode failed[^\n]*", re.IGNORECASE)
_UNPROVEN = re.compile(r"[^\n]*(authentication error|credential)[^\n]*", re.IGNORECASE)
_COMMANDS = ("sinfo", "sbatch", "srun", "squeue", "scontrol")


@dataclass(frozen=True)
class Controller:
    """What the controller said: its partitions, or None, `short` why in a few words, and in `silence` at length.

    `here` is False on a machine without Slurm. `configured` are the partitions of a slurm.conf that could be read,
    None where there is none: with a silent controller they are all that is known.
    """

    partitions: frozenset[str] | None
    silence: str = ""
    short: str = ""
    here: bool = True
    configured: frozenset[str] | None = None


def ask_controller(environment: Mapping[str, str] | None = None, *, cluster: str | None = None,
                   patience_seconds: float = PATIENCE_SECONDS) -> Controller:
    """Ask the controller (of `cluster`, another one of this site) for its partitions.

    A slow one is waited for, with a word after 2 s.
    """
    told = os.environ if environment is None else environment
    configuration = _configuration(told)
    commands = [name for name in _COMMANDS if shutil.which(name) is not None]
    if configuration is None and not commands:
        return Controller(None, "this machine has no Slurm: none of its commands is on the PATH, SLURM_CONF is not "
                                f"set, and there is no {CONFIGURATIONS[0]}", here=False)
    try:
        answer = patiently(lambda left: run_command(QUESTION, cluster=cluster, timeout_seconds=max(left, 0.1),
                                                    say=True), patience_seconds)
    except SlurmCommandError as error:
        asked = QUESTION if cluster is None else (QUESTION[0], f"--clusters={cluster}", *QUESTION[1:])
        short, silence = _silence(error, " ".join(asked), configuration, commands, patience_seconds)
        return Controller(None, silence, short, configured=_configured_partitions(configuration))
    lines = (line.strip() for line in answer.splitlines())
    return Controller(frozenset(line.rstrip("*") for line in lines if line and not line.startswith(CLUSTER_LINE)))


def _configuration(environment: Mapping[str, str]) -> str | None:
    """Return where Slurm's configuration is said to be; None where nothing says so."""
    if environment.get("SLURM_CONF"):
        return environment["SLURM_CONF"]
    return next((str(path) for path in CONFIGURATIONS if path.is_file()), None)


def _silence(error: SlurmCommandError, asked: str, configuration: str | None, commands: list[str],
             patience_seconds: float) -> tuple[str, str]:
    """Return why the controller told nothing, in a few words and at length, so that it is true of this cause."""
    question = f"`{asked}`"
    if munge := _NO_MUNGE.search(error.said):
        short = "munged does not run on this machine, so its commands cannot say who you are"
        return short, f"{short} ({question}: {munge[0]}); start it, or use another node"
    unconfigured = _UNCONFIGURED.search(error.said) is not None
    if isinstance(error, MissingCommandError):
        found = f"Slurm is configured here ({configuration})" if configuration else f"{commands[0]} is on the PATH"
        return "sinfo is not on the PATH", f"{found}, but sinfo is not on the PATH; load Slurm's module"
    if isinstance(error, SlowSlurmError) and not unconfigured:
        short = f"the controller did not answer within {patience_seconds:g} s"
        return short, f"{short} ({question}); check with `scontrol ping`"
    last_line = (error.said.splitlines() or ["it failed without a word"])[-1]
    told = f"{question}: {last_line}"
    if isinstance(error, TransientSlurmError) and not unconfigured:
        short = "the controller is down or cannot be reached"
        return short, f"{short} ({told}); check with `scontrol ping`"
    if unconfigured:
        short = "its commands find no configuration here"
        return short, f"Slurm is installed, but {short} ({told}); set SLURM_CONF"
    if _UNPROVEN.search(error.said):
        short = "the controller does not believe who you are"
        return short, f"{short} ({told}): this machine has another munge key, or its clock is off"
    return "the controller refused the question", f"the controller refused the question ({told})"


def _configured_partitions(configuration: str | None) -> frozenset[str] | None:
    """Return the partitions that a slurm.conf and what it includes name; None where it cannot be read."""
    try:
        text = _with_includes(Path(configuration)) if configuration else None
    except ForeignError:
        return None
    if text is None:
        return None
    names = re.findall(r"^\s*PartitionName\s*=\s*(\S+)", text, re.MULTILINE | re.IGNORECASE)
    return frozenset(names) - {"DEFAULT"}


def _with_includes(path: Path) -> str:
    text = read_text(path)
    included = re.findall(r"^\s*include\s+(\S+)", text, re.MULTILINE | re.IGNORECASE)
    return "\n".join([text, *(read_text(path.parent / name) for name in included)])
