"""Public training runs of many trainers on many GPU kinds (`tests/data/measured/public.csv`)."""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterator, Mapping

from benchmarks.published import FOLDER, Row
from benchmarks.runs import Run
from benchmarks.trainers import TRAINERS
from holmes_hpc.architecture import Architecture


@functools.lru_cache(maxsize=1)
def public_runs() -> Mapping[str, tuple[Row, ...]]:
    """Return the runs by series: one trainer on one machine each, which share whatever was not published."""
    found: dict[str, list[Row]] = {}
    with (FOLDER / "public.csv").open(newline="") as file:
        for line in csv.DictReader(file):
            found.setdefault(line["series"], []).append(_row(line))
    return {series: tuple(rows) for series, rows in found.items()}


def _row(line: Mapping[str, str]) -> Row:
    number = {key: int(line[key]) for key in (
        "hidden", "heads", "kv_heads", "feed_forward", "layers", "sequence", "vocabulary", "tensor", "pipeline", "data",
        "micro_batch", "global_batch", "gpus_per_node", "nics")}
    gated = line["activation"] == "swiglu"
    model = Architecture(
        name=line["name"], num_layers=number["layers"], hidden_size=number["hidden"], num_heads=number["heads"],
        num_kv_heads=number["kv_heads"], ffn_hidden_size=number["feed_forward"], vocab_size=number["vocabulary"],
        sequence_length=number["sequence"], tied_embeddings=line["tied"] == "yes",
        normalization="rmsnorm" if gated else "layernorm", activation=line["activation"],
        position_embedding="rotary" if gated else "learned", rotary_base=10000.0, bias=line["bias"] == "yes",
        normalization_epsilon=1e-5, initialization_std=0.02)
    run = Run(model, line["gpu"], number["global_batch"], number["micro_batch"], number["tensor"], number["pipeline"],
              number["data"], 1, line["recompute"], line["sequence_parallel"] == "yes", line["precision"],
              TRAINERS[line["trainer"]], line["nic"], number["nics"],
              stage_layers=tuple(_stage_layers(number["layers"], number["pipeline"])),
              gpus_per_node=number["gpus_per_node"])
    return Row(line["name"], run, _seconds(line["metric"], float(line["value"]), run))


def _seconds(metric: str, value: float, run: Run) -> float:
    """Return the step of a published figure."""
    tokens = run.global_batch * run.architecture.sequence_length
    return {"tokens/s": lambda: tokens / value, "tokens/s/gpu": lambda: tokens / value / run.gpus,
            "samples/s": lambda: run.global_batch / value, "s/it": lambda: value,
            "ms/it": lambda: value / 1000}[metric]()


def _stage_layers(layers: int, stages: int) -> Iterator[int]:
    """Yield the layers of each stage; where they do not come out even, the inner stages have one more."""
    each, more = divmod(layers, stages)
    first = (stages - more) // 2
    for stage in range(stages):
        yield each + (first <= stage < first + more)
