"""Whether a change keeps every plan: makes the plans of many configurations, and compares two sets of them.

    python -m benchmarks.plan_digests write FOLDER [OVERRIDE ...]   one JSON file a plan, or the refusal's words; a line
                                                                    for each. The overrides go to every plan
    python -m benchmarks.plan_digests compare BEFORE AFTER

`compare` names each plan that differs, the fields that do, and both predicted steps; its exit status is 1 where one
differs. The speed of this machine's CPU, on which plans of emulated runs rest, is a fixed figure here.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_CLUSTERS = ("mixed", "mixed_gpus", "ib", "roce", "ethernet", "laptop", "holmes_paper", "uniform")
_MODELS = ("gpt2_small", "gpt_145_6b", "gpt_18_4b", "gpt_1_7b", "gpt_39_1b", "gpt_3_6b", "gpt_76_1b", "gpt_7_5b",
           "gpt_tiny", "llama_13b", "llama_30b", "llama_70b", "llama_7b", "llama_tiny")
_STRATEGIES = ("auto", "holmes", "megatron", "flashflex")
_LARGER = {
    "mixed": ("cluster.partitions.ib.gpus_per_node=8", "cluster.partitions.roce.gpus_per_node=8"),
    "mixed_gpus": ("cluster.partitions.ib.gpus_per_node=8", "cluster.partitions.roce.gpus_per_node=8",
                   "cluster.partitions.roce.nodes=6"),
    "uniform": ("cluster.nodes=4", "cluster.gpus_per_node=8"),
}
"""Sizes at which models of billions of parameters fit."""
_OPTIONS = (
    ("parallel=holmes", "parallel.pipeline=2"), ("parallel=holmes", "parallel.pipeline=4", "parallel.schedule=gpipe"),
    ("parallel=holmes", "parallel.pipeline=2", "parallel.schedule=zero_bubble"),
    ("parallel=holmes", "parallel.pipeline=2", "parallel.chunks=2"), ("parallel=holmes", "parallel.tensor=2"),
    ("parallel=holmes", "parallel.tensor=2", "parallel.sequence_parallel=true"),
    ("parallel=holmes", "parallel.two_level=false"), ("parallel=holmes", "parallel.turns=true"),
    ("parallel=holmes", "parallel.layer_split=holmes", "parallel.pipeline=2"),
    ("parallel=holmes", "parallel.layer_split=uniform", "parallel.pipeline=2"),
    ("parallel=holmes", "parallel.warmup_extra=2", "parallel.pipeline=2"),
    ("parallel=holmes", "parallel.recompute=full"), ("parallel=auto", "parallel.recompute=auto"),
    ("parallel=auto", "parallel.leave_nodes_out=true"), ("parallel=auto", "model.tied_embeddings=false"),
    ("parallel=auto", "train.global_batch_size=7"), ("parallel=megatron", "parallel.pipeline=2"),
    ("parallel=megatron", "parallel.chunks=2", "parallel.pipeline=2"),
    ("parallel=flashflex", "optimizer.sharded=false"),
)


def cases() -> Iterator[tuple[str, ...]]:
    """Yield the overrides of every plan."""
    for cluster, model, strategy in itertools.product(_CLUSTERS, _MODELS, _STRATEGIES):
        small = model in ("gpt_tiny", "llama_tiny", "gpt2_small")
        precision = () if small else ("train.precision=float16", "train.global_batch_size=128")
        if cluster == "laptop" and not small:
            continue
        yield (f"+cluster={cluster}", f"model={model}", f"parallel={strategy}", *precision,
               *(() if small else _LARGER.get(cluster, ())))
    for cluster, options in itertools.product(("mixed", "mixed_gpus"), _OPTIONS):
        for mode in ("auto", "emulated"):
            yield (f"+cluster={cluster}", *options, f"launch.mode={mode}")


@contextmanager
def planning_here() -> Iterator[str]:
    """Give the CPU of this machine a fixed speed meanwhile; yield the folder that keeps it, which plans may name."""
    from holmes_hpc.cluster.kept_speed import keep_speed

    given = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        keep_speed({"matmul_gflops": 60.0, "copy_gb_per_second": 10.0})
        try:
            yield cache
        finally:
            os.environ.pop("XDG_CACHE_HOME")
            if given is not None:
                os.environ["XDG_CACHE_HOME"] = given


def write(folder: Path, further: Sequence[str] = ()) -> None:
    """Make every plan that the folder lacks and write it there; `further` overrides go to each."""
    from holmes_hpc.config.compose import compose
    from holmes_hpc.errors import HolmesError
    from holmes_hpc.planner import plan

    folder.mkdir(parents=True, exist_ok=True)
    with planning_here() as cache:
        for overrides in cases():
            path = folder / f"{' '.join(overrides).replace('/', '_')}.json"
            if path.exists():
                continue
            try:
                text = plan(compose([*overrides, *further])).to_json().replace(cache, "CACHE")
            except HolmesError as error:
                text = json.dumps({"refused": str(error)})
            path.write_text(text + "\n")
            print(path.stem, flush=True)


def compare(before: Path, after: Path) -> int:
    """Print what differs between two folders of plans; return the number of plans that do."""
    names = sorted({path.name for folder in (before, after) for path in folder.glob("*.json")})
    differing, slower = 0, 0
    for name in names:
        if not ((before / name).exists() and (after / name).exists()):
            print(f"{name}: only in {before if (before / name).exists() else after}")
            differing += 1
            continue
        old, new = (json.loads((folder / name).read_text()) for folder in (before, after))
        if old == new:
            continue
        differing += 1
        steps = [_step(each) for each in (old, new)]
        slower += None not in steps and steps[1] > steps[0] * (1 + 1e-9)
        print(f"{name}: {', '.join(sorted(_fields(old, new)))}; step {steps[0]} -> {steps[1]}")
    print(f"{len(names)} plans, {differing} differ, {slower} of them predicted slower")
    return differing


def _fields(old: Any, new: Any) -> list[str]:
    return [key for key in {*old, *new} if old.get(key) != new.get(key)]


def _step(plan: Any) -> Any:
    return plan.get("predicted", {}).get("step_seconds")


def main() -> int:
    """Read the arguments and do what they ask."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command")
    writing = commands.add_parser("write", allow_abbrev=False)
    writing.add_argument("folder", type=Path)
    writing.add_argument("overrides", nargs="*")
    both = commands.add_parser("compare", allow_abbrev=False)
    both.add_argument("before", type=Path)
    both.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "compare":
        return int(compare(arguments.before, arguments.after) > 0)
    if arguments.command == "write":
        write(arguments.folder, arguments.overrides)
        return 0
    parser.print_help()
    return 0


if __name__ == "__main__":
    sys.exit(main())
