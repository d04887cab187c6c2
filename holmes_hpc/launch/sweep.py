"""A sweep: on Slurm every run planned, submitted at once, and followed in one table; here one run after another."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holmes_hpc.cluster import ClusterDescription, read_cluster
from holmes_hpc.errors import HolmesError, LaunchImpossibleError
from holmes_hpc.launch.in_turn import run_in_turn
from holmes_hpc.launch.slurm.job_plan import plan_for_job
from holmes_hpc.launch.slurm.run import say_what_nodes_do_not_see
from holmes_hpc.launch.train import check_before, fill_in_resume, make_folder, refuse_unsupported
from holmes_hpc.runs import read_result
from holmes_hpc.runs.files import write_json_atomic
from holmes_hpc.runs.find import SWEEP_FILE
from holmes_hpc.submit.board import Board, failure_lines, text
from holmes_hpc.submit.ending import exit_status_of, failure
from holmes_hpc.submit.live import rows, show_until_over
from holmes_hpc.submit.mode import Decision, Probes, decide_mode
from holmes_hpc.submit.sweep import SweepRun, submit_sweep
from holmes_hpc.submit.watch import NOT_SUBMITTED, SubmittedRun, Watch

LOG = logging.getLogger(__name__)

Outcome = tuple[int, float | None]


def sweep(configs: Sequence[Any], words: Sequence[str], place: Path) -> list[Outcome] | None:
    """Submit the runs of a sweep at once, or run them here in turn; return what became of each, None for dry runs.

    `words` are the overrides of each, `place` is a folder of this sweep alone. Raises LaunchImpossibleError where
    some can be submitted and others cannot.
    """
    clusters = [read_cluster(config.cluster) for config in configs]
    where = _where(configs, clusters, words)
    if any(config.launch.dry_run for config in configs):
        return None
    words = distinguishing(words)
    if where != "slurm":
        return run_in_turn(configs, words)
    prepared: dict[int, SweepRun] = {}
    outcomes: dict[int, Outcome] = {}
    for number, config in enumerate(configs):
        try:
            prepared[number] = _prepare(config, clusters[number], words[number])
        except HolmesError as error:
            LOG.error("%s: %s", words[number], error)
            outcomes[number] = (error.exit_status, None)
    say_what_nodes_do_not_see(configs[0])
    answers = submit_sweep(list(prepared.values()), place, configs[0].launch.max_jobs)
    submitted = {}
    for number, answer in zip(prepared, answers, strict=True):
        if isinstance(answer, SubmittedRun):
            submitted[number] = answer
        else:  # it stays in the table, and its result.json says why
            LOG.error("%s: %s", words[number], answer)
            submitted[number] = SubmittedRun(NOT_SUBMITTED, prepared[number].folder)
            outcomes[number] = (answer.exit_status, None)
    write_json_atomic(place / SWEEP_FILE, {"runs": [str(run.folder.path) for run in submitted.values()],
                                           "overrides": [words[number] for number in submitted]})
    outcomes = _follow(submitted, words, place, wait=bool(configs[0].launch.wait)) | outcomes
    return [outcomes[number] for number in range(len(configs))]


def distinguishing(words: Sequence[str]) -> list[str]:
    """Return the overrides of each run without those that all runs have."""
    shared = set.intersection(*(set(each.split(" ")) for each in words))
    return [" ".join(word for word in each.split(" ") if word not in shared) or each for each in words]


def _where(configs: Sequence[Any], clusters: Sequence[ClusterDescription], words: Sequence[str]) -> str:
    """Return the mode of all runs; the controller is asked once."""
    probes = Probes()
    once = dataclasses.replace(probes, controller=functools.cache(probes.controller),
                               controller_of=functools.cache(probes.controller_of),
                               namespaces=functools.cache(probes.namespaces))
    decisions = [decide_mode(config, cluster, os.environ, once)
                 for config, cluster in zip(configs, clusters, strict=True)]
    modes = {decision.mode for decision in decisions}
    if "rank" in modes:
        raise LaunchImpossibleError("a sweep (-m) inside a step that srun started would run in every task; start it "
                                    "without srun")
    if "slurm" not in modes or len(modes) == 1:
        return decisions[0].mode
    raise LaunchImpossibleError(_unlike(decisions, words))


def _unlike(decisions: Sequence[Decision], words: Sequence[str]) -> str:
    count = sum(decision.mode == "slurm" for decision in decisions)
    odd, what = next((decision, what) for decision, what in zip(decisions, words, strict=True)
                     if decision.mode != "slurm")
    return (f"{count} of the {len(words)} runs go to Slurm, but not `{what}`: {odd.full_reason}. Runs that are "
            "compared belong on one machine: mend that cluster file, leave it out, or set launch.mode=emulated for all")


def _prepare(config: Any, cluster: ClusterDescription, words: str) -> SweepRun:
    check_before(config)
    chosen = plan_for_job(config, cluster)
    refuse_unsupported(config)
    fill_in_resume(config)
    return SweepRun(config, make_folder(config, chosen), words)


def _follow(submitted: dict[int, SubmittedRun], words: Sequence[str], place: Path, *, wait: bool
            ) -> dict[int, Outcome]:
    if not submitted:
        return {}
    watch = Watch(list(submitted.values()))
    board = Board({run.folder.path: words[number] for number, run in submitted.items()})
    later = f"`holmes jobs {place}` shows them, with --watch until all are over"
    LOG.info("submitted %d jobs; %s", sum(run.job_id != NOT_SUBMITTED for run in submitted.values()), later)
    if not wait:
        watch.poll()
        sys.stderr.write(text(rows(watch, board)))
        return dict.fromkeys(submitted, (0, None))
    try:
        show_until_over(watch, board, sys.stderr)
    except KeyboardInterrupt:
        LOG.info("no longer following the sweep, whose jobs go on; %s", later)
        return dict.fromkeys(submitted, (0, None))
    outcomes = {}
    for number, watched in zip(submitted, watch.runs, strict=True):
        if watched.run.job_id == NOT_SUBMITTED:
            continue
        status = exit_status_of(watched)
        result = read_result(watched.run.folder) or {}
        outcomes[number] = (status, result.get("tokens_per_second_median") if status == 0 else None)
        if status != 0:
            LOG.error("job %s (%s): %s", watched.run.job_id, words[number], failure(watched))
            sys.stderr.write("\n".join(failure_lines(watched.run.folder)[1:] + [""]))
    return outcomes
