"""The overlapped optimizer against torch's DDP and ZeroRedundancyOptimizer on the same shaped links, in one run.

    python -m benchmarks.overlap [--rounds N] [--steps N] [--gbps RATE]

Every node has one rank and a fabric of 1 Gbit/s, emulated. All contestants take turns on the same ranks, with the
same model, batch, micro-batch, AdamW and clipping. Times are over all steps but the first two of a turn; where the
machine is busy the best step says more than the median. The trainer's ranks are bound to their cores, as its launcher
does it; torch's are not, as `torchrun` leaves them (bound, they are slower: `--bind-peers`). `hidden` is the share of
the time that sums and gathers were under way in which no rank waited for them, from the timelines.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import read_cluster
from holmes_hpc.config.compose import compose
from holmes_hpc.emulation.context import WorldContext
from holmes_hpc.emulation.cores import bind_to_cores
from holmes_hpc.emulation.network import EmulatedNetwork, emulated_network
from holmes_hpc.emulation.world import start_world
from holmes_hpc.planner import plan
from holmes_hpc.runs import RunFolder, read_metrics
from holmes_hpc.values import Plan

COMMON = (
    "+cluster=uniform", "cluster.gpus_per_node=1", "parallel=holmes", "parallel.micro_batch_size=2",
    "model.num_layers=8", "model.hidden_size=256", "model.num_heads=4", "model.vocab_size=512",
    "model.sequence_length=256", "model.tied_embeddings=false", "train.validate_every=0", "train.validation_samples=1",
    "train.timeline_every=1", "optimizer.weight_decay=0.1", "optimizer.lr=3e-4",
)
OFF = ("parallel.overlap_grad_reduce=false", "parallel.overlap_param_gather=false")
CONTESTANTS = {
    "overlap on": (), "overlap off": OFF, "not sharded, overlap off": (*OFF[:1], "optimizer.sharded=false"),
}
LAYOUTS = {
    "DP2": ("cluster.nodes=2", "parallel.pipeline=1", "train.global_batch_size=4"),
    "PP2xDP2": ("cluster.nodes=4", "parallel.pipeline=2", "train.global_batch_size=4", "parallel.micro_batch_size=1",
                "parallel.layer_split=uniform", "parallel.schedule=1f1b", "parallel.warmup_extra=0"),
}
"""The same batch in both: all ranks share this machine's cores, and with a larger one there is only compute to see."""

PEERS = ("DDP", "ZeroRedundancyOptimizer")
WARM_UP_STEPS = 2


@dataclass(frozen=True)
class Turn:
    """One contestant's turn: what to plan, and which peer runs it (none: the trainer)."""

    name: str
    config: Any
    plan: Plan
    folder: RunFolder
    peer: str | None


def compare(layout: str, rounds: int, steps: int, gbps: float, base: Path, *,
            bind_peers: bool = False) -> dict[str, dict[str, list[float]]]:
    """Let all contestants of a layout take turns; return their seconds a step and hidden shares."""
    rate = f"cluster.emulate.rates={{ib: {gbps}, ethernet: {gbps}}}"
    turns = []
    for _ in range(rounds):
        for name, options in CONTESTANTS.items():
            turns.append(_turn(name, (*COMMON, *LAYOUTS[layout], *options, rate), steps, base, None))
        for peer in PEERS:
            # A peer knows data parallelism alone: as many ranks, the same global batch.
            options = (*LAYOUTS[layout], "parallel.pipeline=1", rate)
            turns.append(_turn(peer, (*COMMON, *options), steps, base, peer))
    network = emulated_network(read_cluster(turns[0].config.cluster))
    world = start_world(network, lambda context: _body(context, network, turns, base, bind_peers=bind_peers))
    while world.poll() is None:
        for event in world.events(timeout_seconds=0.2):
            if event["event"] == "failed":
                sys.exit(f"{layout}: {event['message']}")
    if world.poll() != 0:
        sys.exit(f"{layout}: a rank failed, see {base}")
    results: dict[str, dict[str, list[float]]] = {}
    for turn in turns:
        seconds = [row["step_seconds"] for row in read_metrics(turn.folder)][WARM_UP_STEPS:]
        result = results.setdefault(turn.name, {"seconds": [], "hidden": [], "losses": []})
        result["seconds"] += seconds
        result["losses"].append(read_metrics(turn.folder)[-1]["loss"])
        if turn.peer is None:
            result["hidden"].append(hidden_share(turn.folder, turn.plan.world_size))
    return results


def hidden_share(folder: RunFolder, world_size: int) -> float:
    """Return which share of the time with sums or gathers under way the ranks did not wait for them."""
    under_way = waited = 0.0
    for rank in range(world_size):
        steps: dict[int, list[dict[str, Any]]] = {}
        for line in folder.timeline_path(rank).read_text().splitlines():
            record = json.loads(line)
            steps.setdefault(record["step"], []).append(record)
        for step, records in steps.items():
            if step > WARM_UP_STEPS:
                flights = union((r["start"], r["end"]) for r in records if r["kind"] in ("R~", "G~"))
                waits = union((r["start"], r["end"]) for r in records if r["kind"] in ("R", "G"))
                under_way += sum(end - begin for begin, end in flights)
                waited += sum(end - begin for begin, end in waits)
    return max(0.0, 1.0 - waited / under_way) if under_way else 0.0


def union(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the time that spans cover, as spans that do not overlap."""
    merged: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def _turn(name: str, options: Iterable[str], steps: int, base: Path, peer: str | None) -> Turn:
    config = compose([*options, f"train.steps={steps}"])
    return Turn(name, config, plan(config, mode="emulated"), RunFolder.create(base, "turns"), peer)


def _body(context: WorldContext, network: EmulatedNetwork, turns: list[Turn], base: Path, *, bind_peers: bool) -> int:
    import torch

    torch.set_num_threads(1)
    for place in turns[0].plan.ranks:
        node = network.node(place.slot)

        def run(rank: int = place.rank, node: Any = node) -> int:
            for number, turn in enumerate(turns):
                _take_turn(turn, rank, node, base / f"store-{number}", bind_peers=bind_peers)
            return 0

        context.fork_rank(place.rank, node.name, run, base / f"rank-{place.rank}.log")
    while context.ranks:
        ended = context.wait()
        if ended is not None and ended[1] != 0:
            context.end_ranks(grace_seconds=0)
            return 1
    return 0


def _take_turn(turn: Turn, rank: int, node: Any, store: Path, *, bind_peers: bool) -> None:
    from torch.distributed import FileStore

    from holmes_hpc.comm.groups import connect
    from holmes_hpc.comm.networks import NodeNetworks
    from holmes_hpc.data import open_dataset

    config, made = turn.config, turn.plan
    architecture = Architecture.from_config(config.model)
    dataset = open_dataset(config.data, architecture)
    networks = NodeNetworks(node.name, node.interface_names, turn.plan.ranks[rank].slot.split("/")[0])
    every_core = os.sched_getaffinity(0)
    if turn.peer is None or bind_peers:
        bind_to_cores(rank, made.world_size)
    communicator = connect(FileStore(str(store), made.world_size), rank, made.world_size, made, networks)
    if turn.peer is None:
        _ours(turn, rank, architecture, dataset, communicator)
    else:
        _peer(turn, rank, architecture, dataset, communicator)
    communicator.barrier()
    communicator.close()
    os.sched_setaffinity(0, every_core)


def _ours(turn: Turn, rank: int, architecture: Architecture, dataset: Any, communicator: Any) -> None:
    from holmes_hpc.engine import Job, Trainer
    from holmes_hpc.metrics import StepMetrics, Usage

    Trainer(Job(turn.plan, rank, architecture, dataset, communicator, turn.folder,
                StepMetrics(turn.plan, architecture, 1.0, True), Usage(None, None), turn.config.train,
                turn.config.optimizer)).run()


def _peer(turn: Turn, rank: int, architecture: Architecture, dataset: Any, communicator: Any) -> None:
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    from holmes_hpc.engine.batch import TrainingBatches
    from holmes_hpc.engine.optimizer import learning_rate
    from holmes_hpc.model import build_stage, token_loss

    settings, train = turn.config.optimizer, turn.config.train
    group = communicator.group(next(i for i, each in enumerate(turn.plan.groups) if each.kind == "data"))
    module = build_stage(architecture, 0, architecture.num_layers, first=True, last=True, seed=train.seed)
    model = DistributedDataParallel(module, process_group=group, gradient_as_bucket_view=True)
    options: dict[str, Any] = {"lr": settings.lr, "betas": (settings.beta1, settings.beta2), "eps": settings.epsilon,
                               "fused": True}
    groups = [{"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": settings.weight_decay},
              {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}]
    optimizer: Any = (torch.optim.AdamW(groups, **options) if turn.peer == "DDP" else ZeroRedundancyOptimizer(
        groups, optimizer_class=torch.optim.AdamW, process_group=group, **options))
    batches = TrainingBatches(turn.plan, dataset, train.seed, torch.device("cpu"))
    communicator.barrier()
    for step in range(1, train.steps + 1):
        began = time.perf_counter()
        microbatches = list(batches.load(step, {rank}).values())
        total = 0.0
        for number, batch in enumerate(microbatches):
            model.require_backward_grad_sync = number == len(microbatches) - 1
            loss = token_loss(model(batch.tokens), batch.targets) / len(microbatches)
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_grad_norm)
        for each in optimizer.param_groups:
            each["lr"] = learning_rate(step, settings, train.steps)
        optimizer.step()
        optimizer.zero_grad()
        mean = torch.tensor([total / turn.plan.world_size])
        torch.distributed.all_reduce(mean, group=group)
        if rank == 0:
            turn.folder.append_metrics({"step": step, "loss": float(mean), "step_seconds": time.perf_counter() - began})


def _print(layout: str, results: dict[str, dict[str, list[float]]]) -> None:
    middle, best = median(results["DDP"]["seconds"]), min(results["DDP"]["seconds"])
    for name, result in results.items():
        seconds = sorted(result["seconds"])
        quartiles = f"{1e3 * seconds[len(seconds) // 4]:.0f} to {1e3 * seconds[3 * len(seconds) // 4]:.0f}"
        hidden = f"{100 * median(result['hidden']):.0f} %" if result["hidden"] else ""
        print(f"| {layout} | {name} | {1e3 * median(seconds):.0f} | {quartiles} | {1e3 * seconds[0]:.0f} | "
              f"{median(seconds) / middle:.2f} | {seconds[0] / best:.2f} | {hidden} | {result['losses'][-1]:.6f} |",
              flush=True)


def main() -> None:
    """Run every layout and print the table as Markdown."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--gbps", type=float, default=1.0)
    parser.add_argument("--bind-peers", action="store_true", help="bind the ranks of torch's contestants to cores too")
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=list(LAYOUTS))
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    print("| layout | contestant | ms a step | quartiles | best | of DDP's | best of DDP's best | hidden | last loss |")
    print("|---|---|---|---|---|---|---|---|---|")
    for layout in arguments.layouts:
        with tempfile.TemporaryDirectory(prefix="holmes-overlap-") as folder:
            _print(layout, compare(layout, arguments.rounds, arguments.steps, arguments.gbps, Path(folder),
                                   bind_peers=arguments.bind_peers))


if __name__ == "__main__":
    main()
