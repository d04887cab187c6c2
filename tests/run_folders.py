"""Make run folders as a run of PP2xDP4 on `mixed` leaves them, with numbers that one can work out by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from holmes_hpc.values import (
    Group,
    Level,
    Operation,
    Pipeline,
    Plan,
    Prediction,
    RankPlace,
    Reduction,
    ScheduleChoice,
    Stage,
)

CONFIG = """\
cluster:
  name: {cluster}
  order: {order}
  emulate: {{rates: {{ib: 2.0, roce: 1.5, ethernet: 0.2}}, compute: {compute}, scale: 1.0}}
model: {{name: gpt_tiny, num_layers: 4, hidden_size: 128, sequence_length: 128}}
parallel: {{strategy: auto}}
train: {{steps: 100, precision: float32}}
run: {{name: {run_name}, folder: runs}}
"""


def make_plan(
    strategy: str = "holmes", machine: str = "emulated", step_seconds: float = 0.08, bound: bool = True
) -> Plan:
    """Four pipelines of two stages, the first on the ib nodes. Not holmes: every group uses Ethernet."""
    places = tuple(
        RankPlace(
            rank=rank,
            slot=f"{'ib' if rank < 4 else 'roce'}/{rank // 2 % 2}",
            local_rank=rank % 2,
            gpu="a100-80g",
            fabric="ib" if rank < 4 else "roce",
            node=f"{'ib' if rank < 4 else 'roce'}-{rank // 2 % 2}" if bound else None,
        )
        for rank in range(8)
    )
    pairs = [(i, i + 4) for i in range(4)]
    network = {"holmes": ("ib", "roce")}.get(strategy, ("ethernet", "ethernet"))
    groups = [Group("world", tuple(range(8)), "ethernet")]
    groups += [Group("pipeline", pair, "ethernet") for pair in pairs]
    groups += [Group("data", (0, 1, 2, 3), network[0]), Group("data", (4, 5, 6, 7), network[1])]
    return Plan(
        strategy=strategy,
        world_size=8,
        num_layers=4,
        micro_batch_size=2,
        global_batch_size=32,
        ranks=places,
        pipelines=tuple(Pipeline(4, (Stage((a,), 0, 2), Stage((b,), 2, 2))) for a, b in pairs),
        groups=tuple(groups),
        reductions=(
            Reduction(("embedding", "layers.0", "layers.1"), (0, 1, 2, 3), (Level(Operation.ALL_REDUCE, (5,)),)),
            Reduction(("layers.2", "layers.3", "head"), (4, 5, 6, 7), (Level(Operation.ALL_REDUCE, (6,)),)),
        ),
        schedule=ScheduleChoice("1f1b", warmup_extra=1, digest="0" * 16),
        predicted=Prediction(machine, step_seconds, 4096 / step_seconds, 0.002, (0.1,) * 8, 0.2),
    )


def metric(step: int, step_seconds: float = 0.1, emulated: bool = True, **further: Any) -> dict[str, Any]:
    """A record of metrics.jsonl: 4096 tokens a step."""
    return {
        "step": step,
        "loss": 5.5 / (1 + 0.02 * step),
        "tokens": 4096,
        "samples": 32,
        "step_seconds": step_seconds,
        "tokens_per_second": 4096 / step_seconds,
        "samples_per_second": 32 / step_seconds,
        "tflops_per_gpu": 0.002,
        "mfu": 0.1,
        "grad_norm": 1.0,
        "lr": 0.001,
        "memory_gib": 0.5,
        "bytes_ethernet": 2_000_000,
        "bytes_fabric": 12_000_000,
        "exposed_comm_seconds": 0.01,
        "bubble_fraction": 0.25,
        "validation_loss": None,
        "time": f"2026-10-03T12:00:{step % 60:02d}Z",
        "emulated": emulated,
        **further,
    }


def make_run(
    base: Path,
    identifier: str = "20261003T120000-ab12",
    *,
    run_name: str = "mixed",
    cluster: str = "mixed",
    order: str = "grouped",
    compute: str = "real",
    plan: Plan | None = None,
    metrics: Iterable[dict[str, Any]] = (),
    result: dict[str, Any] | None = None,
    timeline_steps: Iterable[int] = (),
    torn: bool = False,
) -> Path:
    """Write `base/<run_name>/<identifier>` and return it. `torn`: its writer was killed in a line."""
    folder = base / run_name / identifier
    (folder / "ranks").mkdir(parents=True)
    (folder / "config.yaml").write_text(
        CONFIG.format(cluster=cluster, order=order, compute=compute, run_name=run_name)
    )
    plan = plan or make_plan()
    (folder / "plan.json").write_text(plan.to_json())
    (folder / "job.json").write_text(
        json.dumps(
            {
                "job_id": None,
                "components": [],
                "restarts": 0,
                "ranks": [
                    {"rank": rank, "node": f"host{rank // 2}", "pid": 1000 + rank} for rank in range(8)
                ],
            }
        )
    )
    _write_lines(folder / "metrics.jsonl", metrics, torn)
    for rank in range(8) if timeline_steps else ():
        records = [record for step in timeline_steps for record in timeline(plan, rank, step)]
        _write_lines(folder / "ranks" / f"rank-{rank}.jsonl", records, torn)
    if result is not None:
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def timeline(
    plan: Plan, rank: int, step: int, forward: float = 0.006, backward: float = 0.012, hop: float = 0.004
) -> list[dict[str, Any]]:
    """The records of one rank under 1F1B with one extra warm-up forward, from a small simulation."""
    pipeline = next(
        p for p, each in enumerate(plan.pipelines) if any(rank in stage.ranks for stage in each.stages)
    )
    stage = 0 if rank in plan.pipelines[pipeline].stages[0].ranks else 1
    count = plan.pipelines[pipeline].microbatches
    orders = {
        0: [("F", 0), ("F", 1), ("F", 2), ("B", 0), ("F", 3), ("B", 1), ("B", 2), ("B", 3)],
        1: [(kind, i) for i in range(count) for kind in "FB"],
    }
    ends: dict[tuple[str, int, int], float] = {}
    clock = {0: 0.0, 1: 0.0}
    records: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    waiting = {0: list(orders[0]), 1: list(orders[1])}

    def record(s: int, action: str, kind: str, microbatch: int, start: float, end: float) -> None:
        records[s].append(
            {
                "step": step,
                "action": action,
                "kind": kind,
                "pipeline": pipeline,
                "stage": s,
                "microbatch": microbatch,
                "start": round(start, 6),
                "end": round(end, 6),
            }
        )

    while waiting[0] or waiting[1]:
        for s in (0, 1):
            while waiting[s]:
                kind, i = waiting[s][0]
                source = (
                    ("F", 0, i) if (kind, s) == ("F", 1) else ("B", 1, i) if (kind, s) == ("B", 0) else None
                )
                if source and source not in ends:
                    break
                start = clock[s]
                if source:
                    start = max(start, ends[source] + hop)
                    receive = "RA" if kind == "F" else "RG"
                    record(s, f"{receive}{pipeline}.{s}.{i}@{rank}", receive, i, clock[s], start)
                end = start + (forward if kind == "F" else backward) * (
                    1 + 0.03 * ((rank * 7 + i * 3 + step) % 5)
                )
                record(s, f"{kind}{pipeline}.{s}.{i}", kind, i, start, end)
                if (kind, s) in (("F", 0), ("B", 1)):
                    send = "SA" if kind == "F" else "SG"
                    record(s, f"{send}{pipeline}.{s}.{i}@{rank}", send, i, end, end + hop)
                ends[kind, s, i] = clock[s] = end
                waiting[s].pop(0)
    record(stage, f"R{stage}", "R", -1, clock[stage], clock[stage] + 0.009)
    record(stage, "O", "O", -1, clock[stage] + 0.009, clock[stage] + 0.012)
    return records[stage]


def _write_lines(path: Path, records: Iterable[dict[str, Any]], torn: bool) -> None:
    text = "".join(json.dumps(record) + "\n" for record in records)
    path.write_text(text + ('{"step": 999, "loss": 1.' if torn else ""))
