"""Runs a plan on this machine: on the emulated cluster, or as plain local processes."""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
import sys
from collections.abc import Mapping
from typing import Any

from holmes_hpc.cluster import ClusterDescription, Machine
from holmes_hpc.cluster.nccl import DEFAULTS, hardware_queues, may_share_gpus
from holmes_hpc.emulation.network import EmulatedNetwork, emulated_network
from holmes_hpc.emulation.world import World, WorldContext, start_world
from holmes_hpc.errors import INTERRUPTED
from holmes_hpc.launch.follow.failure import FailureReport
from holmes_hpc.launch.follow.interruption import InterruptedRunError, interruptible
from holmes_hpc.launch.follow.progress import make_reporter
from holmes_hpc.launch.here.ended import RESERVE, RESERVED_BYTES, RunEnd
from holmes_hpc.launch.here.following import Following
from holmes_hpc.launch.here.other_load import OtherLoad
from holmes_hpc.launch.here.supervisor import supervise
from holmes_hpc.launch.node.backend import backend_here
from holmes_hpc.launch.node.node_report import read_node
from holmes_hpc.launch.rank.settings import RankSettings
from holmes_hpc.runs import RunFolder, write_job
from holmes_hpc.runs.private import SECRET_BYTES
from holmes_hpc.runs.supervision import Limits
from holmes_hpc.values import Plan
from holmes_hpc.values.timed import TimedPrices, step_seconds_here

LOG = logging.getLogger(__name__)


def run_here(plan: Plan, config: Any, cluster: ClusterDescription, folder: RunFolder, mode: str,
             timed: TimedPrices | None = None) -> int:
    """Run a bound plan on this machine, follow it, and return the exit status of the command.

    `timed` are the prices of a wind tunnel's waits, None where the ranks compute.
    """
    folder.forget_attempt()
    network = emulated_network(cluster, timed) if mode == "emulated" else None
    ranks = _rank_settings(plan, config, cluster, folder, network, timed)
    folder.write_text(folder.path / RESERVE, "." * RESERVED_BYTES)
    write_job(folder, ranks=[(settings.rank, settings.node, None) for settings in ranks],
              emulated=network is not None, environment=os.environ)

    def body(context: WorldContext) -> int:
        return supervise(context, ranks, network)

    limits, load = Limits.of_train(config.train, step_seconds_here(plan, timed)), OtherLoad()
    with interruptible(), make_reporter(config.train.steps, sys.stderr) as reporter:
        world: World | None = None
        failure = FailureReport(folder)
        end = RunEnd(folder, emulated=network is not None, seconds=limits.checkpoint_seconds)
        try:
            world = start_world(network, body)
            following = Following(world, folder, {settings.rank: settings.node for settings in ranks},
                                  limits, reporter, failure)
            status = following.follow()
        except InterruptedRunError as interruption:
            if world is not None:
                world.kill()
            words = f"interrupted by {interruption}"
            ended, _ = end.write("failed", lambda: words, words)
            LOG.warning("%s; the run is ended, its folder is %s", ended, folder.path)
            return INTERRUPTED
    if status == 0:
        held = load.cores()
        if held is not None:
            LOG.warning("other programs held %.1f of this machine's %d cores meanwhile: the run was slower for that, "
                        "and compares with no other", *held)
            end = dataclasses.replace(end, others_held_cores=held[0])
        error, written = end.write("completed", lambda: None)
        if not written:
            LOG.error("%s", error)
        return 0 if written else 1
    if not following.folder_answers:
        LOG.error("%s; what the run left in %s is as it is", failure.message(), folder.path)
        return 1
    LOG.error("%s", end.write("failed", failure.message, failure.cause)[0])
    return 1


def _rank_settings(plan: Plan, config: Any, cluster: ClusterDescription, folder: RunFolder,
                   network: EmulatedNetwork | None, timed: TimedPrices | None) -> list[RankSettings]:
    machine = Machine.emulated(cluster) if plan.predicted.is_here else Machine.described(cluster)
    mode = "local" if network is None else "emulated"
    backend = backend_here(str(config.launch.backend), mode, cluster, read_node("here").gpus,
                           shared=may_share_gpus(os.environ))
    if backend is None or backend.needs_gpus:
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)
    host = "127.0.0.1" if network is None else network.node(plan.ranks[0].slot).ethernet_address
    secret = secrets.token_bytes(SECRET_BYTES)
    settings = []
    for place in plan.ranks:
        node = cluster.node_of(place.rank)
        interfaces: Mapping[str, str]
        if network is None:
            interfaces = dict.fromkeys({"local", "ethernet", node.network}, "lo")
        else:
            interfaces = network.node(place.slot).interface_names
        settings.append(RankSettings(
            rank=place.rank, node=str(place.node), slot=place.slot, plan=plan, config=config, cluster=cluster,
            folder=folder, interfaces=interfaces, host=host, peak_tflops=machine.tflops(node, config.train.precision),
            emulated=network is not None, counts_bytes=network is not None and place.local_rank == 0,
            rendezvous_path=folder.rendezvous_path, secret=secret, backend=backend.name if backend else None,
            shares_gpus=may_share_gpus(os.environ), device_queues=hardware_queues(os.environ),
            disturbances=cluster.disturbances, timed=timed,
        ))
    return settings
