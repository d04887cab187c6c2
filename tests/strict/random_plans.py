"""Drawn layouts by hand: unlike pipelines over several fabrics, unlike tensor degrees, ranks in several pipelines."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

FABRICS = ("hdr200", "roce200", "eth25", "opa100")
_LARGEST_WORLD = 8


def random_plan(seed: int) -> list[str]:
    """Return the overrides of a drawn run of a tiny model: the cluster, the layout and what changes its traffic."""
    draw = random.Random(seed)
    world = draw.choice((2, 3, 4, 4, 5, 6, 7, 8))
    layers = draw.randint(2, 5)
    kind = draw.choice(("apart", "apart", "shared", "tensor", "grid"))
    micro_batch = draw.choice((1, 2))
    model = [f"model.num_layers={layers}", "model.num_heads=4", "model.hidden_size=16",
             f"model.tied_embeddings={_yes(draw, 0.5)}", f"parallel.micro_batch_size={micro_batch}"]
    if kind == "grid":
        return [*_cluster(draw, 4 * draw.choice((1, 2)), draw.choice((1, 2))), *model, *_grid(draw, layers),
                "train.global_batch_size=16", *_traffic(draw)]
    pipelines = {"apart": _apart, "shared": _shared, "tensor": _in_parts}[kind](draw, world, layers)
    counts = [draw.randint(1, 4) for _ in pipelines]
    layout = ", ".join(_pipeline(draw, count, stages, layers) for count, stages in zip(counts, pipelines, strict=True))
    schedule = draw.choice(("gpipe", "1f1b", "1f1b", "zero_bubble"))
    whole = kind == "tensor"  # the ranks of a stage are of one node: fabrics end where pipelines do
    ends = list(itertools.accumulate(sum(map(len, stages)) for stages in pipelines))[:-1]
    places = ends if whole else range(1, world)
    return [*_cluster(draw, world, draw.randint(1, min(3, len(places) + 1)), places, whole=whole), *model,
            "parallel=manual",
            f"parallel.pipelines=[{layout}]", f"train.global_batch_size={micro_batch * sum(counts)}",
            f"parallel.schedule={schedule}", *_some(draw, 0.3, f"parallel.warmup_extra={draw.randint(1, 2)}"),
            *(_some(draw, 0.5, "parallel.sequence_parallel=true") if kind == "tensor" else []), *_traffic(draw)]


def _cluster(draw: random.Random, world: int, fabrics: int, places: Sequence[int] = (), *, whole: bool = False
             ) -> list[str]:
    """Return a cluster of so many ranks, whose fabrics end at some of `places`; nodes of one GPU or one node each."""
    ends = sorted(draw.sample(list(places or range(1, world)), fabrics - 1))
    labels = []
    for number, (begin, end) in enumerate(zip([0, *ends], [*ends, world], strict=True)):
        nodes, gpus = (end - begin, 1) if not whole and draw.random() < 0.5 else (1, end - begin)
        labels.append(f"f{number}: {{nodes: {nodes}, gpus_per_node: {gpus}, gpu: a100-80g, nic: {FABRICS[number]}}}")
    return ["+cluster.name=drawn", f"+cluster.partitions={{{', '.join(labels)}}}"]


def _grid(draw: random.Random, layers: int) -> list[str]:
    strategy = draw.choice(("holmes", "megatron"))
    chunks = ["parallel.chunks=2", "parallel.schedule=interleaved"] if layers >= 4 and draw.random() < 0.5 else []
    return [f"parallel={strategy}", "parallel.pipeline=2", *chunks, *_some(draw, 0.3, "parallel.turns=true")]


def _apart(draw: random.Random, world: int, layers: int) -> list[list[list[int]]]:
    ranks = list(range(world))
    draw.shuffle(ranks)
    found = []
    while ranks:
        stages = draw.randint(1, min(len(ranks), layers, 4))
        found.append([[rank] for rank in ranks[:stages]])
        ranks = ranks[stages:]
    return found


def _shared(draw: random.Random, world: int, layers: int) -> list[list[list[int]]]:
    found = [[[rank] for rank in draw.sample(range(world), draw.randint(1, min(world, layers, 4)))]
             for _ in range(draw.randint(2, 3))]
    used = {rank for pipeline in found for stage in pipeline for rank in stage}
    left = [rank for rank in range(world) if rank not in used]
    return [*found, *([[rank] for rank in left[at:at + layers]] for at in range(0, len(left), layers))]


def _in_parts(draw: random.Random, world: int, layers: int) -> list[list[list[int]]]:
    ranks, found = list(range(world)), []
    while ranks:
        stages = []
        for _ in range(draw.randint(1, min(3, layers))):
            degree = draw.choice([each for each in (1, 1, 2, 2, 4) if each <= len(ranks)] or [0])
            stages += [ranks[:degree]] if degree else []
            ranks = ranks[degree:]
        found.append(stages)
    return found


def _pipeline(draw: random.Random, microbatches: int, stages: Sequence[Sequence[int]], layers: int) -> str:
    cuts = sorted(draw.sample(range(1, layers), len(stages) - 1))
    sizes = [end - begin for begin, end in zip([0, *cuts], [*cuts, layers], strict=True)]
    words = ", ".join(f"{{ranks: [{', '.join(map(str, ranks))}], layers: {size}}}"
                      for ranks, size in zip(stages, sizes, strict=True))
    return f"{{microbatches: {microbatches}, stages: [{words}]}}"


def _traffic(draw: random.Random) -> list[str]:
    """Return settings that change what travels, and when."""
    return [*_some(draw, 0.3, "optimizer.sharded=false"), *_some(draw, 0.3, "parallel.overlap_grad_reduce=false"),
            *_some(draw, 0.3, "parallel.overlap_param_gather=false"), *_some(draw, 0.3, "parallel.two_level=false"),
            *_some(draw, 0.3, "train.precision=bfloat16"), *_some(draw, 0.2, "parallel.recompute=full"),
            *_some(draw, 0.3, "train.checkpoint_every=2"),
            f"parallel.bucket_mib={draw.choice((0.004, 0.02, 0.5))}", "train.steps=3", "train.validate_every=2",
            "train.validation_samples=5"]


def _some(draw: random.Random, chance: float, *options: str) -> list[str]:
    return list(options) if draw.random() < chance else []


def _yes(draw: random.Random, chance: float) -> str:
    return str(draw.random() < chance).lower()
