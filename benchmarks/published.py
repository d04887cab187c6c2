"""The published measurements in `tests/data/measured`, as runs that the planner prices."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.runs import Run
from benchmarks.trainers import MEGATRON_2021, MEGATRON_2022, MEGATRON_DEEPSPEED, MEGATRON_LLAMA
from holmes_hpc.architecture import Architecture

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "data" / "measured"
VOCABULARY = 51200
SELENE_NODE = ("hdr200", 8)
"""One HDR InfiniBand NIC for each GPU (Narayanan et al. 2021)."""
H100_NODE = ("ndr400", 8)
VTRAIN_NODE = ("hdr200", 4)
"""800 Gb/s a node (vTrain's published configurations)."""


@dataclass(frozen=True)
class Row:
    """A published step: the run and its measured seconds. `blank`: what was not published and taken as 1."""

    name: str
    run: Run
    seconds: float
    blank: tuple[str, ...] = ()

    @property
    def error_percent(self) -> float:
        """How far the prediction is above the measurement, in percent of it."""
        return 100 * (self.run.seconds / self.seconds - 1)

    def with_micro_batch(self, size: int) -> Row:
        """Return the row with another micro-batch."""
        return replace(self, run=replace(self.run, micro_batch=size))


def gpt(hidden: int, layers: int, heads: int, length: int, vocabulary: int = VOCABULARY) -> Architecture:
    """Return a GPT as Megatron-LM builds it."""
    return Architecture(
        name=f"gpt-h{hidden}-l{layers}", num_layers=layers, hidden_size=hidden, num_heads=heads, num_kv_heads=heads,
        ffn_hidden_size=4 * hidden, vocab_size=vocabulary, sequence_length=length, tied_embeddings=True,
        normalization="layernorm", activation="gelu", position_embedding="learned", rotary_base=10000.0, bias=True,
        normalization_epsilon=1e-5, initialization_std=0.02)


def korthikanti() -> list[Row]:
    """Return the rows of Korthikanti et al. 2022, Table 5; constants were fitted on them."""
    return list(_training("Korthikanti"))


def sc21() -> list[Row]:
    """Return the rows of Narayanan et al. 2021, Table 1."""
    return list(_training("SC21"))


def vtrain_multi() -> list[Row]:
    """Return vTrain's measured multi-node iterations."""
    return list(_vtrain("vtrain_multi.csv"))


def vtrain_single() -> list[Row]:
    """Return vTrain's measured single-node iterations, those of the launch constant included."""
    return list(_vtrain("vtrain_single.csv"))


def fixes_launches(row: Row) -> bool:
    """Whether the launch constant was fitted on this single-node row."""
    run = row.run
    return (run.architecture.hidden_size, run.tensor, run.micro_batch) == (1024, 1, 1)


def _read(name: str) -> Iterator[dict[str, str]]:
    with (FOLDER / name).open(newline="") as file:
        yield from csv.DictReader(file)


def _training(source: str) -> Iterator[Row]:
    software = {"Korthikanti": MEGATRON_2022, "SC21": MEGATRON_2021}[source]
    for line in _read("megatron.csv"):
        if line["source"] != source:
            continue
        hidden, layers, length = int(line["hidden"]), int(line["layers"]), int(line["sequence"])
        batch, gpus = int(line["global_batch"]), int(line["gpus"])
        architecture = gpt(hidden, layers, int(line["heads"]), length, int(line["vocabulary"]))
        blank = tuple(name for name in ("micro_batch", "chunks") if not line[name])
        run = Run(
            architecture, "a100-80g", batch, int(line["micro_batch"] or 1), int(line["tensor"]),
            int(line["pipeline"]), int(line["data"]), int(line["chunks"] or 1), line["recompute"],
            line["sequence_parallel"] == "yes", "float16", software, *SELENE_NODE)
        seconds = (float(line["seconds"]) if line["seconds"]
                   else published_flops(architecture, batch) / (float(line["tflops_per_gpu"]) * 1e12 * gpus))
        yield Row(line["name"], run, seconds, blank)


def published_flops(architecture: Architecture, batch: int) -> float:
    """Return Narayanan et al.'s FLOPs of a step, which always count a full recomputation (equation 3)."""
    layers, hidden, length = architecture.num_layers, architecture.hidden_size, architecture.sequence_length
    return 96 * batch * length * layers * hidden**2 * (1 + length / (6 * hidden)
                                                       + architecture.vocab_size / (16 * layers * hidden))


def unfused_gpt_layer_bytes(architecture: Architecture, samples: int, *, tensor: int = 1,
                            sequence_parallel: bool = False) -> float:
    """Return the bytes that a GPT layer keeps on each rank at 16 bit, with dropout and an unfused core.

    s b h (34 + 5 a s / h) on one rank; tensor parallelism divides all but 10 s b h of it, and sequence
    parallelism those too (Korthikanti et al. 2022, equations 1, 2 and 4).
    """
    tokens_hidden = samples * architecture.sequence_length * architecture.hidden_size
    scores = 5 * architecture.num_heads * architecture.sequence_length / architecture.hidden_size
    if sequence_parallel:
        return tokens_hidden * (34 + scores) / tensor
    return tokens_hidden * (10 + (24 + scores) / tensor)


def llama_3(chunks: int) -> list[tuple[Run, float]]:
    """Return Llama 3 405B's published runs on H100 and their TFLOP/s a GPU, at an interleaving that is not stated.

    Its first and last stage have a layer less than the others, for the embedding and the head.
    """
    model = replace(gpt(16384, 126, 128, 8192, 128256), num_kv_heads=8, ffn_hidden_size=53248, activation="swiglu",
                    bias=False, normalization="rmsnorm", position_embedding="rotary", tied_embeddings=False)
    return [(Run(model, "h100", int(line["global_batch"]), int(line["micro_batch"]), int(line["tensor"]),
                 int(line["pipeline"]), int(line["data"]), chunks, "none", True, "bfloat16", MEGATRON_LLAMA, *H100_NODE,
                 stage_layers=_fewer_at_the_ends(model.num_layers, int(line["pipeline"]) * chunks)),
             float(line["tflops_per_gpu"]))
            for line in _read("llama3.csv")]


def _fewer_at_the_ends(layers: int, stages: int) -> tuple[int, ...]:
    each = (layers + 2) // stages
    return (each - 1, *(each,) * (stages - 2), each - 1)


def _vtrain(name: str) -> Iterator[Row]:
    for line in _read(name):
        number = {key: int(value) for key, value in line.items() if key != "milliseconds"}
        architecture = gpt(number["hidden"], number["layers"], number["heads"], number["sequence"])
        run = Run(
            architecture, "a100-80g", number["global_batch"], number["micro_batch"], number["tensor"],
            number["pipeline"], number["data"], 1, "full", False, "float16", MEGATRON_DEEPSPEED, *VTRAIN_NODE)
        label = " ".join(f"{key}{number[word]}" for key, word in (
            ("h", "hidden"), ("l", "layers"), ("t", "tensor"), ("d", "data"), ("p", "pipeline"), ("b", "micro_batch"),
            ("B", "global_batch")))
        yield Row(label, run, float(line["milliseconds"]) / 1000)
