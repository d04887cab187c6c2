"""A sweep: on Slurm every run planned, submitted at once, and followed in one table; here one run after another."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from holmes_hpc.cluster import ClusterDescription, read_cluster
from holmes_hpc.config.plugins import load_plugins
from holmes_hpc.errors import ConfigurationError, LaunchImpossibleError
from holmes_hpc.launch.course import say_alike, say_course
from holmes_hpc.launch.in_turn import run_in_turn
from holmes_hpc.launch.slurm.travelling import check_travelling
from holmes_hpc.launch.submitting import Outcome, run_sweep, submit_waiting
from holmes_hpc.runs.sweep_record import RECORD
from holmes_hpc.runs.sweeps import Sweep, find_sweep, fingerprint
from holmes_hpc.submit.commands import clean_environment
from holmes_hpc.submit.mode import Decision, Probes, decide_mode

LOG = logging.getLogger(__name__)

def sweep(configs: Sequence[Any], words: Sequence[str], place: Path) -> list[Outcome] | None:
    """Submit the runs of a sweep at once, or run them here in turn; return what became of each, None for dry runs.

    `words` are the overrides of each, `place` is a folder of this sweep alone. Raises LaunchImpossibleError where
    some can be submitted and others cannot.
    """
    clusters = [read_cluster(config.cluster) for config in configs]
    where = _where(configs, clusters, words, os.environ)
    if where == "slurm":
        _check_travelling(configs, clusters)
    if any(config.launch.dry_run for config in configs):
        return None
    say_alike(configs)
    words = distinguishing(words)
    if where != "slurm":
        return run_in_turn(configs, words)
    say_course(configs)
    launch = configs[0].launch
    begun = None if launch.new_sweep else find_sweep(place.parent, fingerprint(configs, words))
    if begun is not None:
        LOG.info("this command began the sweep in %s, which is not complete; launch.new_sweep=true begins another one",
                 begun.place)
        with suppress(OSError):  # Hydra made it, for a sweep that does not begin
            (place / RECORD).unlink(missing_ok=True)
            place.rmdir()
    return run_sweep(begun or Sweep.begin(place, configs, words), configs, clusters, wait=bool(launch.wait),
                     max_jobs=launch.max_jobs)


def resume_sweep(place: Path, *, wait: bool = True) -> list[Outcome]:
    """Go on with the sweep in a folder: submit what is missing or has failed, and follow all; return the outcomes.

    Raises ConfigurationError where the folder holds no sweep that was submitted to Slurm, LaunchImpossibleError where
    Slurm is not here, and as `run_sweep` does.
    """
    begun, configs, clusters = _begun(place)
    return run_sweep(begun, configs, clusters, wait=wait, max_jobs=configs[0].launch.max_jobs)


def submit_what_waits(place: Path, patience_seconds: float, last_job: str | None = None) -> None:
    """Submit those runs of the sweep in a folder that wait for room in the queue, as far as they fit within so long.

    Where none does, the sweep's job `last_job`, in which this runs, goes on with one of them.
    Raises as `resume_sweep` and `submit_waiting` do.
    """
    submit_waiting(*_begun(place), patience_seconds, last_job)


def _begun(place: Path) -> tuple[Sweep, list[Any], list[ClusterDescription]]:
    """Return a sweep that was submitted, and the configuration and the cluster of each run. Raises as above."""
    begun = Sweep.read(place)
    if begun is None:
        raise ConfigurationError(f"{place} holds no sweep that was submitted to Slurm; name a folder such as "
                                 "runs/sweeps/20261130-120000-ab12, which the command named when it began")
    configs = begun.configs()
    for config in configs:
        load_plugins(config)
    clusters = [read_cluster(config.cluster) for config in configs]
    # Also where this is typed, or a job of the sweep does it, inside of another job.
    where = _where(configs, clusters, begun.words, clean_environment(os.environ))
    if where != "slurm":
        raise LaunchImpossibleError(f"a sweep goes on where it was submitted; a run would go here: {where}")
    _check_travelling(configs, clusters)
    return begun, configs, clusters


def distinguishing(words: Sequence[str]) -> list[str]:
    """Return the overrides of each run without those that all runs have."""
    shared = set.intersection(*(set(each.split(" ")) for each in words))
    return [" ".join(word for word in each.split(" ") if word not in shared) or each for each in words]


def _where(configs: Sequence[Any], clusters: Sequence[ClusterDescription], words: Sequence[str],
           environment: Mapping[str, str]) -> str:
    """Return the mode of all runs; the controller is asked once."""
    probes = Probes()
    once = dataclasses.replace(probes, controller=functools.cache(probes.controller),
                               controller_of=functools.cache(probes.controller_of),
                               namespaces=functools.cache(probes.namespaces))
    decisions = [decide_mode(config, cluster, environment, once)
                 for config, cluster in zip(configs, clusters, strict=True)]
    modes = {decision.mode for decision in decisions}
    if "rank" in modes:
        raise LaunchImpossibleError("a sweep (-m) inside a step that srun started would run in every task; start it "
                                    "without srun")
    if "slurm" not in modes or len(modes) == 1:
        return decisions[0].mode
    raise LaunchImpossibleError(_unlike(decisions, words))


def _check_travelling(configs: Sequence[Any], clusters: Sequence[ClusterDescription]) -> None:
    for config, cluster in zip(configs, clusters, strict=True):
        check_travelling(config, cluster, os.environ, submitted=True)


def _unlike(decisions: Sequence[Decision], words: Sequence[str]) -> str:
    count = sum(decision.mode == "slurm" for decision in decisions)
    odd, what = next((decision, what) for decision, what in zip(decisions, words, strict=True)
                     if decision.mode != "slurm")
    return (f"{count} of the {len(words)} runs go to Slurm, but not `{what}`: {odd.full_reason}. Runs that are "
            "compared belong on one machine: mend that cluster file, leave it out, or set launch.mode=emulated for all")
