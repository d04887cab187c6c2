"""The trainer's throughput in one process against a plain PyTorch loop of the same model, in one run.

    python -m benchmarks.single_process [--rounds N] [--steps N] [--threads 1 2] [--profile]

Both take turns, step by step, in the same process: the same batch and micro-batches, AdamW (fused) and clipping. Times
are medians over all steps but the first of a turn; the seconds of CPU say more than those of the clock where the
machine is busy. The losses must agree.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.distributed import HashStore

from holmes_hpc.architecture import Architecture
from holmes_hpc.comm.groups import connect
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.config.compose import compose
from holmes_hpc.data import open_dataset
from holmes_hpc.engine import Job, Trainer
from holmes_hpc.engine.batch import TrainingBatches
from holmes_hpc.engine.optimizer import learning_rate
from holmes_hpc.metrics import StepMetrics, Usage
from holmes_hpc.model import build_stage, token_loss
from holmes_hpc.planner import plan
from holmes_hpc.runs import RunFolder

OPTIONS = (
    "+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=1", "parallel.micro_batch_size=2",
    "train.global_batch_size=4", "train.timeline_every=0", "model.num_layers=8", "model.hidden_size=256",
    "model.num_heads=4", "model.vocab_size=512", "model.sequence_length=256", "train.steps=1000", "optimizer.lr=3e-4",
)
Step = Callable[[int], float]


def plain_loop(config: Any, batches: TrainingBatches) -> Step:
    """Return one step of what a researcher would write without any toolkit."""
    architecture = Architecture.from_config(config.model)
    model = build_stage(architecture, 0, architecture.num_layers, first=True, last=True, seed=config.train.seed)
    settings = config.optimizer
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": settings.weight_decay},
         {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0}],
        lr=settings.lr, betas=(settings.beta1, settings.beta2), eps=settings.epsilon, fused=True)

    def step(number: int) -> float:
        total = 0.0
        optimizer.zero_grad()
        for batch in batches.load(number, {0}).values():
            loss = token_loss(model(batch.tokens), batch.targets) * batch.weight
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(number, settings, config.train.steps)
        optimizer.step()
        return total

    return step


def ours(config: Any, made: Any, dataset: Any, folder: RunFolder) -> Step:
    """Return one step of the trainer."""
    architecture = Architecture.from_config(config.model)
    communicator = connect(HashStore(), 0, 1, made, NodeNetworks.local())
    trainer = Trainer(Job(made, 0, architecture, dataset, communicator, folder,
                          StepMetrics(made, architecture, 1.0, False), Usage(None, None), config.train,
                          config.optimizer))

    def step(number: int) -> float:
        return float(trainer.step(number)["loss"])

    return step


def main() -> None:
    """Let both take turns with each number of threads and print the table as Markdown."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--profile", action="store_true", help="print the trainer's profile too")
    arguments = parser.parse_args()
    config = compose(list(OPTIONS))
    made = plan(config, mode="local")
    architecture = Architecture.from_config(config.model)
    dataset = open_dataset(config.data, architecture)
    tokens = made.global_batch_size * architecture.sequence_length
    print("| threads | loop | tokens/s | ms a step | CPU ms a step | trainer / plain |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="holmes-single-") as base:
        loops = {"plain": plain_loop(config, TrainingBatches(made, dataset, config.train.seed, torch.device("cpu"))),
                 "trainer": ours(config, made, dataset, RunFolder.create(Path(base), "single"))}
        done = dict.fromkeys(loops, 0)
        for threads in arguments.threads:
            torch.set_num_threads(threads)
            times: dict[str, list[tuple[float, float]]] = {name: [] for name in loops}
            losses: dict[str, float] = {}
            for _ in range(arguments.rounds):
                for name, step in loops.items():
                    for turn in range(arguments.steps):
                        done[name] += 1
                        clock, cpu = time.perf_counter(), time.process_time()
                        losses[name] = step(done[name])
                        if turn:
                            times[name].append((time.perf_counter() - clock, time.process_time() - cpu))
            if abs(losses["trainer"] / losses["plain"] - 1) > 1e-3:
                raise SystemExit(f"the losses differ: {losses}")
            plain = median(clock for clock, _ in times["plain"])
            for name, each in times.items():
                clock, cpu = median(a for a, _ in each), median(b for _, b in each)
                print(f"| {threads} | {name} | {tokens / clock:,.0f} | {1e3 * clock:.0f} | {1e3 * cpu:.0f} | "
                      f"{plain / clock:.3f} |", flush=True)
        if arguments.profile:
            with cProfile.Profile() as profile:
                for turn in range(8):
                    loops["trainer"](done["trainer"] + turn + 1)
            pstats.Stats(profile).sort_stats("tottime").print_stats(20)


if __name__ == "__main__":
    main()
