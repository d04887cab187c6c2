"""One rank, from its first line to its exit status."""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import torch
from omegaconf import OmegaConf

from holmes_hpc import registry
from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster.nccl import device_index
from holmes_hpc.comm.activity import Activity
from holmes_hpc.comm.backends import available_backend
from holmes_hpc.comm.devices import bus_address
from holmes_hpc.comm.groups import Communicator, connect
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.comm.reduce import all_reduce_scalars
from holmes_hpc.comm.store.client import RunStore
from holmes_hpc.data import Dataset, open_dataset
from holmes_hpc.engine import Job, Trainer
from holmes_hpc.engine.pace import Pace
from holmes_hpc.engine.sharing import share_numbers
from holmes_hpc.errors import PREEMPTED, DataError, HolmesError
from holmes_hpc.launch.node.descriptors import take_descriptors
from holmes_hpc.launch.rank.binding import bind_near
from holmes_hpc.launch.rank.ports import ports_of
from holmes_hpc.launch.rank.probing import measure
from holmes_hpc.launch.rank.rendezvous import open_store
from holmes_hpc.launch.rank.settings import RankSettings
from holmes_hpc.launch.rank.starting import first_signs, wait_for_all
from holmes_hpc.launch.rank.watching import report_error, watched
from holmes_hpc.metrics import StepMetrics, Usage
from holmes_hpc.metrics.libraries import chosen_trackers, open_library
from holmes_hpc.metrics.trackers import Trackers
from holmes_hpc.redaction import redact, redact_value
from holmes_hpc.runs import update_job
from holmes_hpc.values.backend_kinds import BACKEND_KINDS
from holmes_hpc.values.trackers import TrackedRun

Progress = Callable[[int, int, str], None]
Say = Callable[[str], None]



def run_rank(settings: RankSettings, progress: Progress, say: Say) -> int:
    """Train as one rank and return its exit status; what went wrong is left in the run folder.

    The status is 3 where the ranks were told to stop and have saved their state.
    `say` tells the user a line.
    """
    settings.spare.keep()
    try:
        completed = _train(settings, progress, say)
    except Exception as error:
        report_error(settings, error)
        sys.stderr.write(redact(traceback.format_exc()))
        return error.exit_status if isinstance(error, HolmesError) else 1
    return 0 if completed else PREEMPTED


def _train(settings: RankSettings, progress: Progress, say: Say) -> bool:
    torch.set_num_threads(1)
    take_descriptors()
    config, plan = settings.config, settings.plan
    architecture = Architecture.from_config(config.model)
    with first_signs(settings, activity := Activity()):
        dataset = _open_data(settings, architecture, activity, say) if settings.timed is None else None
        communicator, store = _meet(settings, dataset, activity, progress, say)
    if config.launch.probe_only:
        communicator.barrier()
        communicator.close()
        return True
    usage = _usage(settings)
    metrics = StepMetrics(plan, architecture, settings.peak_tflops, settings.emulated, settings.timed)
    with _trackers(settings, say) as trackers, watched(communicator, settings):
        job = Job(plan, settings.rank, architecture, dataset, communicator, settings.folder, metrics, usage,
                  config.train, config.optimizer, say, settings.stop_requested, (trackers,),
                  config.model.get("from_pretrained"), _pace(settings), settings.timed)
        completed = Trainer(job).run()
        communicator.barrier()  # the first rank that leaves may take the others with it
    communicator.close()
    store.close()
    return completed


def _pace(settings: RankSettings) -> Pace:
    return Pace(settings.disturbances, settings.slot, settings.plan.ranks[settings.rank].local_rank,
                lambda step: settings.wait_for_links(step, settings.training_seconds))


def _open_data(settings: RankSettings, architecture: Architecture, activity: Activity, say: Say) -> Dataset:
    """Open the data, which may take long, and say what a user should know of it."""
    activity.begin("opening data")
    data = settings.config.data
    dataset = open_dataset(data, architecture, activity.begin)
    if settings.rank == 0:
        for remark in dataset.remarks(doubts=not data.check_before_start,  # else it was said before the start
                                      validation_samples=settings.config.train.validation_samples):
            say(remark)
    return dataset


def _meet(settings: RankSettings, dataset: Dataset | None, activity: Activity, progress: Progress, say: Say
          ) -> tuple[Communicator, RunStore]:
    """Meet the other ranks, and connect the plan's groups; return them, and the store that they met at."""
    config, plan = settings.config, settings.plan
    store = open_store(settings, config.train.start_timeout_seconds, activity)
    wait_for_all(store, settings, activity, config.train.start_timeout_seconds)
    networks = NodeNetworks(settings.node, settings.interfaces, settings.slot.split("/")[0])
    backend = settings.backend or available_backend()
    communicator = connect(
        store, settings.rank, plan.world_size, plan, networks,
        backend=backend, device=_device(settings, say) if BACKEND_KINDS[backend].needs_gpus else None,
        start_timeout=timedelta(seconds=config.train.start_timeout_seconds),
        train_timeout=timedelta(seconds=settings.training_seconds),
        progress=progress,
        gloo_threads=config.launch.gloo_threads,
        activity=activity,
        shares_devices=settings.shares_gpus,
        device_queues=settings.device_queues,
    )
    communicator.barrier()
    if settings.job_id is not None:
        _write_job(settings, communicator)
    if dataset is not None:
        _compare_data(settings, dataset, communicator)
    if config.launch.probe or config.launch.probe_only:
        measure(settings, communicator)  # makes groups of its own
        communicator.barrier()  # a rank that is late would find the store closed
    if not communicator.backend.abilities.uses_store_later:
        store.close()
    return communicator, store


def _trackers(settings: RankSettings, say: Say) -> Trackers:
    """Return the trackers that `run.trackers` chooses: none but on rank 0, which alone has the rows."""
    names = chosen_trackers(settings.config.run.get("trackers")) if settings.rank == 0 else ()
    config = OmegaConf.to_container(settings.config) if names else {}
    folder = settings.folder.path
    run = TrackedRun(folder.parent.name, folder, cast(dict[str, Any], redact_value(config)), settings.plan)
    return Trackers({name: registry.TRACKERS[name] if name in registry.TRACKERS else open_library(name)
                     for name in names}, run, say)


def _device(settings: RankSettings, say: Say) -> torch.device:
    """Return this rank's GPU, which torch uses from now on. Raises ConfigurationError where there are too few."""
    place = settings.plan.ranks[settings.rank]
    tasks = sum(other.node == place.node for other in settings.plan.ranks)
    index = device_index(place.local_rank, torch.cuda.device_count(), tasks, shared=settings.shares_gpus)
    torch.cuda.set_device(index)
    device = torch.device("cuda", index)
    if settings.config.launch.bind_cpus and (address := bus_address(device)):
        bind_near(settings, address, say)
    return device


def _write_job(settings: RankSettings, communicator: Communicator) -> None:
    """Let rank 0 write the pid of every rank into job.json."""
    pids = share_numbers(float(os.getpid()), communicator)
    if settings.rank == 0:
        update_job(settings.folder, [(place.rank, str(place.node), int(pids[place.rank]))
                                     for place in settings.plan.ranks],
                   restarts=settings.restarts, job_id=str(settings.job_id))


def _compare_data(settings: RankSettings, dataset: Dataset, communicator: Communicator) -> None:
    """Check that all nodes read the same tokens: the first stage's and the last one's must be of one text.

    Raises DataError that names the ranks whose data differ from rank 0's.
    """
    digests = torch.zeros(settings.plan.world_size, dtype=torch.int64)
    digests[settings.rank] = int(hashlib.sha256(dataset.fingerprint().encode()).hexdigest()[:15], 16)
    all_reduce_scalars(digests, communicator.world, communicator)
    unlike = [place for place in settings.plan.ranks if digests[place.rank] != digests[0]]
    if unlike:
        names = ", ".join(f"{place.rank} on {place.node}" for place in unlike)
        raise DataError(
            f"data.name={settings.config.data.name}: ranks {names} read other tokens than rank 0; with python_docs "
            "every node needs the same Python, with files the same files (data.path)"
        )


def _usage(settings: RankSettings) -> Usage:
    if not settings.counts_bytes:
        return Usage(None, None)
    interfaces = settings.interfaces
    fabric = [name for network, name in interfaces.items() if network not in ("local", "ethernet")]
    return Usage(interfaces.get("ethernet"), fabric[0] if fabric else None, ports_of(settings),
                 headers=settings.timed is None)
