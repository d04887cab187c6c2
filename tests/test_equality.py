"""The heart of the suite: every layout trains exactly as one process does.

Float32, clipping on, the norm compared too: AdamW alone would hide gradients of a wrong scale. Ranks are forked from
the tests; through the command, on the emulated cluster, the same layouts train bit for bit as they do here.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from holmes_hpc.architecture import Architecture
from holmes_hpc.config.compose import compose
from holmes_hpc.data import TokenFileWriter, open_dataset
from holmes_hpc.model import build_stage
from holmes_hpc.model.attention import Documents
from holmes_hpc.values.targets import NOT_COUNTED
from tests.chat_models import conversation, model_folder, write_rows
from tests.engine_worlds import train_world
from tests.runs_for_tests import train

RELATIVE_TOLERANCE = 1e-5
STEPS, LONG_STEPS = 4, 20
COMMON = [
    "train.global_batch_size=16", "train.validate_every=0", "train.validation_samples=6",
    "train.timeline_every=0", "parallel.micro_batch_size=2", "model.num_layers=5", "model.hidden_size=32",
    "model.num_heads=2", "model.sequence_length=32", "optimizer.clip_grad_norm=0.5", "parallel.bucket_mib=0.05",
]
SHORT = [f"train.steps={STEPS}", "optimizer.warmup_steps=2"]
"""Few steps learn at once; over many that would make norms jump, and what rounding leaves grow with them."""
LONG = [f"train.steps={LONG_STEPS}"]
ONE = ["+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=1"]


def uniform(nodes: int, gpus: int) -> list[str]:
    return ["+cluster=uniform", f"cluster.nodes={nodes}", f"cluster.gpus_per_node={gpus}"]


def mixed(ib: tuple[int, int], roce: tuple[int, int], order: str = "grouped") -> list[str]:
    return ["+cluster=mixed", f"cluster.order={order}",
            f"cluster.partitions.ib.nodes={ib[0]}", f"cluster.partitions.ib.gpus_per_node={ib[1]}",
            f"cluster.partitions.roce.nodes={roce[0]}", f"cluster.partitions.roce.gpus_per_node={roce[1]}"]


TIED, UNTIED = "model.tied_embeddings=true", "model.tied_embeddings=false"
HOLMES, MEGATRON = "parallel=holmes", "parallel=megatron"
TENSOR_2, SEQUENCE = "parallel.tensor=2", "parallel.sequence_parallel=true"
LLAMA = ["model=llama_tiny", "model.num_heads=4", "model.num_kv_heads=2", "model.ffn_hidden_size=48"]
UNLIKE_DEGREES = (
    "parallel.pipelines=["
    "{microbatches: 3, stages: [{ranks: [0, 1], layers: 1}, {ranks: [2, 3], layers: 1}, {ranks: [4, 5], layers: 1}]},"
    "{microbatches: 1, stages: [{ranks: [6], layers: 2}, {ranks: [7], layers: 1}]}]"
)
"""Two pipelines: of tensor degree 2 in three stages, and of degree 1 in two."""
CHANGING_DEGREES = (
    "parallel.pipelines=["
    "{microbatches: 2, stages: [{ranks: [0], layers: 1}, {ranks: [1, 2], layers: 1}, {ranks: [3, 4], layers: 1}]},"
    "{microbatches: 2, stages: [{ranks: [5, 6], layers: 2}, {ranks: [7], layers: 1}]}]"
)
PLAIN = ["optimizer.sharded=false", "parallel.overlap_grad_reduce=false"]
NO_OVERLAP = ["parallel.overlap_grad_reduce=false", "parallel.overlap_param_gather=false"]
SMALL = ["model.num_layers=3", "model.num_heads=4", "parallel.micro_batch_size=4"]
"""Tensor-parallel ranks wait for one another in every layer of every micro-batch: few of both keep the tests short."""

LAYOUTS = {
    "dp2": [*uniform(2, 1), HOLMES, "parallel.pipeline=1", TIED],
    "dp4": [*uniform(2, 2), HOLMES, "parallel.pipeline=1", UNTIED, "optimizer.schedule=wsd", "optimizer.decayed=all"],
    "pp2": [*mixed((1, 1), (1, 1)), HOLMES, TIED],
    "pp2-untied-sgd": [*mixed((1, 1), (1, 1)), HOLMES, UNTIED, "optimizer=sgd"],
    "pp4": [*mixed((2, 1), (2, 1)), HOLMES, "parallel.pipeline=4", TIED],
    "pp4-gpipe": [*mixed((2, 1), (2, 1)), HOLMES, "parallel.pipeline=4", "parallel.schedule=gpipe", UNTIED],
    "pp2-dp2": [*mixed((1, 2), (1, 2)), HOLMES, UNTIED],
    "pp2-dp2-tied-sgd": [*mixed((1, 2), (1, 2)), HOLMES, TIED, "optimizer=sgd"],
    "pp2-dp2-uneven": [*mixed((1, 2), (1, 2)), HOLMES, TIED, "parallel.layer_split=[4,1]"],
    "pp2-dp2-warmup": [*mixed((1, 2), (1, 2)), HOLMES, UNTIED, "parallel.schedule=1f1b", "parallel.warmup_extra=2"],
    "interleaved-pp2": [*mixed((1, 1), (1, 1)), HOLMES, "parallel.chunks=2", TIED],
    "interleaved-pp2-dp2": [*mixed((1, 2), (1, 2)), HOLMES, "parallel.chunks=2", UNTIED],
    "zero-bubble-pp2": [*mixed((1, 1), (1, 1)), HOLMES, "parallel.schedule=zero_bubble", TIED, "optimizer=sgd"],
    "zero-bubble-pp4": [*mixed((2, 1), (2, 1)), HOLMES, "parallel.pipeline=4", "parallel.schedule=zero_bubble", UNTIED],
    "turns-pp2-dp4": [*mixed((2, 2), (2, 2)), HOLMES, "parallel.pipeline=2", "parallel.turns=true", UNTIED],
    "turns-zero-bubble-warmup": [*mixed((1, 2), (1, 2)), HOLMES, "parallel.turns=true", "parallel.warmup_extra=1",
                                 "parallel.schedule=zero_bubble", TIED],
    "pp2-dp2-alternate": [*mixed((1, 2), (1, 2), "alternate"), HOLMES, TIED],
    "pp2-dp4-holmes-alternate": [*mixed((2, 2), (2, 2), "alternate"), HOLMES, "parallel.pipeline=2", TIED],
    "pp2-dp4-megatron": [*mixed((2, 2), (2, 2)), MEGATRON, "parallel.pipeline=2", TIED],
    "pp2-dp4-megatron-alternate": [*mixed((2, 2), (2, 2), "alternate"), MEGATRON, "parallel.pipeline=2", UNTIED],
    "three-beside-one": [*mixed((3, 1), (1, 1)), HOLMES, TIED],
    "three-beside-one-untied": [*mixed((3, 1), (1, 1), "alternate"), HOLMES, UNTIED],
    "five-beside-three": [*mixed((5, 1), (3, 1)), HOLMES, TIED],
    "plain-pp2-dp4": [*mixed((2, 2), (2, 2)), HOLMES, "parallel.pipeline=2", TIED, *PLAIN],
    "plain-three-beside-one-sgd": [*mixed((3, 1), (1, 1)), HOLMES, UNTIED, "optimizer=sgd", *PLAIN],
    "plain-overlapped-pp2-dp2": [*mixed((1, 2), (1, 2)), HOLMES, TIED, "optimizer.sharded=false"],
    "no-overlap-pp2-dp2": [*mixed((1, 2), (1, 2)), HOLMES, TIED, *NO_OVERLAP],
    "megatron-overlapped-pp2-dp4": [*mixed((2, 2), (2, 2)), MEGATRON, "parallel.pipeline=2", TIED,
                                    "parallel.overlap_grad_reduce=true", "parallel.overlap_param_gather=true"],
    "dp-across-fabrics": [
        *mixed((1, 2), (1, 2)), "parallel=manual", UNTIED,
        "parallel.pipelines=[{microbatches: 3, stages: [{ranks: [0], layers: 3}, {ranks: [1], layers: 2}]},"
        "{microbatches: 5, stages: [{ranks: [2], layers: 1}, {ranks: [3], layers: 4}]}]",
    ],
    "unlike-pipelines": [
        *mixed((1, 2), (1, 1)), "parallel=manual", TIED,
        "parallel.pipelines=[{microbatches: 6, stages: [{ranks: [0], layers: 2}, {ranks: [1], layers: 3}]},"
        "{microbatches: 2, stages: [{ranks: [2], layers: 5}]}]",
    ],
}

TENSOR_LAYOUTS = {
    "tp2": [*uniform(1, 2), MEGATRON, TENSOR_2, TIED],
    "tp2-sequence-untied": [*uniform(1, 2), MEGATRON, TENSOR_2, SEQUENCE, UNTIED],
    "tp2-llama": [*uniform(1, 2), MEGATRON, TENSOR_2, *LLAMA],
    "tp2-llama-sequence-recompute": [*uniform(1, 2), MEGATRON, TENSOR_2, SEQUENCE, *LLAMA, "parallel.recompute=full"],
    "tp4-sequence": [*uniform(1, 4), MEGATRON, "parallel.tensor=4", SEQUENCE, TIED, "parallel.micro_batch_size=8"],
    "tp4-selective": [*uniform(1, 4), MEGATRON, "parallel.tensor=4", UNTIED, "parallel.micro_batch_size=8",
                      "parallel.recompute=selective"],
    "tp2-pp2": [*mixed((1, 2), (1, 2)), HOLMES, TENSOR_2, TIED, "parallel.layer_split=[1,2]"],
    "tp2-pp2-sequence": [*mixed((1, 2), (1, 2)), HOLMES, TENSOR_2, SEQUENCE, UNTIED, "parallel.recompute=full"],
    "tp2-pp2-dp2": [*mixed((1, 4), (1, 4)), HOLMES, TENSOR_2, "parallel.pipeline=2", UNTIED],
    "tp2-pp2-dp2-sequence": [*mixed((2, 2), (1, 4)), HOLMES, TENSOR_2, "parallel.pipeline=2", SEQUENCE, TIED],
    "tp2-pp2-dp2-megatron": [*mixed((1, 4), (1, 4)), MEGATRON, TENSOR_2, "parallel.pipeline=2", TIED],
    "unlike-tensor-degrees": [*mixed((1, 4), (1, 4)), "parallel=manual", TIED, UNLIKE_DEGREES],
    "unlike-tensor-degrees-sequence": [*mixed((1, 4), (1, 4)), "parallel=manual", UNTIED, SEQUENCE, UNLIKE_DEGREES],
    "degrees-that-change": [*mixed((1, 5), (1, 3)), "parallel=manual", TIED, SEQUENCE, CHANGING_DEGREES],
    "zero-bubble-tensor2": [*mixed((1, 2), (1, 2)), HOLMES, TENSOR_2, SEQUENCE, "parallel.schedule=zero_bubble",
                            "parallel.recompute=full", TIED],
    "recompute-full": [*ONE, TIED, "parallel.recompute=full"],
}
LAYOUTS |= {name: [*SMALL, *layout] for name, layout in TENSOR_LAYOUTS.items()}


DAILY_BY_COMMAND = ("pp2-dp2-uneven", "zero-bubble-tensor2")
"""Layouts that the daily tests train through the command too."""
BY_COMMAND = (
    *DAILY_BY_COMMAND, "dp4", "pp2-untied-sgd", "pp4-gpipe", "interleaved-pp2-dp2", "turns-pp2-dp4",
    "pp2-dp4-holmes-alternate", "pp2-dp4-megatron-alternate", "five-beside-three", "plain-three-beside-one-sgd",
    "no-overlap-pp2-dp2", "dp-across-fabrics", "tp2-llama", "tp2-pp2-dp2-sequence", "unlike-tensor-degrees",
    "recompute-full",
)
"""Layouts that go through the command in the long tests: each kind of cluster, network, schedule and strategy. The
others train as long in forks of the tests: with the command stands what is between it and the ranks, not the layout."""

Rows = list[dict[str, Any]]
References = dict[tuple[str, ...], Rows]


@pytest.fixture(scope="module")
def references() -> References:
    return {}


def reference_of(layout: list[str], known: References, folder: Path, course: list[str]) -> Rows:
    options = (*(o for o in layout if o.startswith(("model", "optimizer"))), *course)
    if options not in known:
        known[options] = train_world(folder, [*ONE, *COMMON, *options]).rows
    return known[options]


def assert_as_one_process(found: Rows, expected: Rows, steps: int) -> None:
    assert len(found) == len(expected) == steps
    for key in ("loss", "grad_norm"):
        assert [row[key] for row in found] == pytest.approx([row[key] for row in expected], rel=RELATIVE_TOLERANCE)
    assert found[-1]["validation_loss"] == pytest.approx(expected[-1]["validation_loss"], rel=RELATIVE_TOLERANCE)
    assert expected[0]["grad_norm"] > 0.5, "clipping must act"
    assert expected[-1]["loss"] < expected[0]["loss"] - 0.1, "the model must learn"


LONG_ALONE = (
    "dp4", "interleaved-pp2", "pp2-dp4-holmes-alternate", "pp2-dp4-megatron", "plain-pp2-dp4", "tp2", "tp2-llama",
    "three-beside-one-untied", "tp2-pp2-dp2", "unlike-tensor-degrees",
)
"""Layouts of which the others hold every part, in another combination: the long tests alone train them."""


def unless_long(names: Iterable[str], long: Container[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.long if name in long else ()) for name in names]


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in LONG_ALONE])
def test_layout_trains_as_one_process(name: str, tmp_path: Path, references: References) -> None:
    expected = reference_of(LAYOUTS[name], references, tmp_path, SHORT)
    assert_as_one_process(train_world(tmp_path, [*COMMON, *LAYOUTS[name], *SHORT]).rows, expected, STEPS)


ROTARY_RMS = [*LLAMA, *SMALL]
QWEN2 = [*ROTARY_RMS, "model.attention_bias=qkv", "model.tied_embeddings=true"]
QWEN3 = [*ROTARY_RMS, "model.head_size=12", "model.query_key_norm=head"]
OLMO2 = [*ROTARY_RMS, "model.query_key_norm=all", "model.norm_order=after", "model.normalization_epsilon=1e-3"]
"""A norm that follows a layer divides by what the layer says, which at this size is nearly nothing for some token: with
the usual epsilon one process differs from itself by 4e-5 where only the size of its micro-batches is another."""
NEOX = [*SMALL, UNTIED, "model.position_embedding=rotary", "model.rotary_fraction=0.25", "model.parallel_residual=true"]
GEMMA2 = [*ROTARY_RMS, "model.normalization=rmsnorm_1p", "model.activation=geglu_tanh", "model.norm_order=both",
          "model.head_size=16", "model.embedding_scale=5.66", "model.attention_scale=0.2", TIED]
GPT2 = [*SMALL, TIED, "model.activation=gelu_tanh", "model.max_positions=40", "model.vocab_size=257"]
LLAMA3 = [*ROTARY_RMS, "model.rotary_scaling=llama3", "model.rotary_factor=8", "model.rotary_original_length=32"]
TWO_BESIDE_ONE = [*mixed((1, 4), (1, 4)), "parallel=manual", UNLIKE_DEGREES]
FAMILY_LAYOUTS = {
    "qwen2-tp2-pp2": [*QWEN2, *mixed((1, 2), (1, 2)), HOLMES, TENSOR_2, "parallel.layer_split=[2,1]"],
    "qwen3-tp2-sequence": [*QWEN3, *uniform(1, 2), MEGATRON, TENSOR_2, SEQUENCE, "parallel.recompute=full"],
    "qwen3-two-beside-one": [*QWEN3, *TWO_BESIDE_ONE],
    "olmo2-tp2": [*OLMO2, *uniform(1, 2), MEGATRON, TENSOR_2, "optimizer=sgd"],
    "olmo2-tp2-pp2-sequence-zero-bubble": [*OLMO2, *mixed((1, 2), (1, 2)), HOLMES, TENSOR_2, SEQUENCE,
                                           "parallel.schedule=zero_bubble", "parallel.recompute=selective"],
    "neox-pp3-uneven": [*NEOX, *mixed((2, 1), (1, 1)), HOLMES, "parallel.pipeline=3"],
    "neox-tp2": [*NEOX, *uniform(1, 2), MEGATRON, TENSOR_2],
    "gemma2-tp2-pp2": [*GEMMA2, *mixed((1, 2), (1, 2)), HOLMES, TENSOR_2, SEQUENCE],
    "gpt2-tp2-dp2": [*GPT2, *uniform(1, 4), MEGATRON, TENSOR_2],
    "llama3-pp2-dp2": [*LLAMA3, *mixed((1, 2), (1, 2)), HOLMES],
}
LESS_SPECIAL = ("neox-tp2", "olmo2-tp2-pp2-sequence-zero-bubble", "llama3-pp2-dp2")


def in_courses(layouts: dict[str, list[str]], long: Container[str] = ()) -> pytest.MarkDecorator:
    """A few steps each day, and 20 in the long tests, where those of `long` are alone; SGD learns only in 20."""
    cases = []
    for name, layout in layouts.items():
        learns_late = "optimizer=sgd" in layout
        if not learns_late and name not in long:
            cases.append(pytest.param(name, SHORT, STEPS, id=f"{name}-short"))
        cases.append(pytest.param(name, LONG, LONG_STEPS, id=f"{name}-long",
                                  marks=() if learns_late and name not in long else pytest.mark.long))
    return pytest.mark.parametrize(("name", "course", "steps"), cases)


@in_courses(FAMILY_LAYOUTS, LESS_SPECIAL)
def test_what_families_have_trains_as_one_process(name: str, course: list[str], steps: int, tmp_path: Path,
                                                  references: References) -> None:
    expected = reference_of(FAMILY_LAYOUTS[name], references, tmp_path, course)
    assert_as_one_process(train_world(tmp_path, [*COMMON, *FAMILY_LAYOUTS[name], *course]).rows, expected, steps)


ODD = ["model.vocab_size=259", *SMALL]
"""No number of tensor ranks divides it."""
ODD_LAYOUTS = {
    "tp2": [*uniform(1, 2), MEGATRON, TENSOR_2, TIED, "optimizer.sharded=false"],
    "tp4-sequence": [*uniform(1, 4), MEGATRON, "parallel.tensor=4", SEQUENCE, UNTIED],
    "tp2-pp2-llama": [*mixed((1, 2), (1, 2)), HOLMES, TENSOR_2, *LLAMA, "parallel.layer_split=[1,2]"],
    "two-beside-one": [*mixed((1, 4), (1, 4)), "parallel=manual", TIED, UNLIKE_DEGREES],
    "two-beside-three": [
        *mixed((1, 3), (1, 2)), "parallel=manual", UNTIED, "model.num_heads=6", "model.hidden_size=48",
        "parallel.pipelines=[{microbatches: 3, stages: [{ranks: [0, 1, 2], layers: 3}]},"
        "{microbatches: 1, stages: [{ranks: [3, 4], layers: 3}]}]"],
}


@in_courses(ODD_LAYOUTS, ("tp2", "tp2-pp2-llama"))
def test_a_vocabulary_that_does_not_divide_trains_as_one_process(name: str, course: list[str], steps: int,
                                                                 tmp_path: Path, references: References) -> None:
    layout = [*ODD, *ODD_LAYOUTS[name]]
    expected = reference_of(layout, references, tmp_path, course)
    assert_as_one_process(train_world(tmp_path, [*COMMON, *layout, *course]).rows, expected, steps)


MASKED_LAYOUTS = {
    "dp2": [*uniform(2, 1), HOLMES, "parallel.pipeline=1", TIED],
    "pp2": [*mixed((1, 1), (1, 1)), HOLMES, TIED],
    "tp2": [*uniform(1, 2), MEGATRON, TENSOR_2, TIED],
    "tp2-pp2-sequence-llama": [*mixed((1, 2), (1, 2)), HOLMES, TENSOR_2, SEQUENCE, *LLAMA, "parallel.recompute=full",
                               "parallel.layer_split=[1,2]"],
    "unlike-pipelines-sgd": [
        *mixed((1, 2), (1, 1)), "parallel=manual", TIED, "optimizer=sgd", "parallel.micro_batch_size=2",
        "parallel.pipelines=[{microbatches: 6, stages: [{ranks: [0], layers: 2}, {ranks: [1], layers: 1}]},"
        "{microbatches: 2, stages: [{ranks: [2], layers: 3}]}]"],
}
"""Layouts of samples that count unlike numbers of tokens, and some none."""
PACKED = {"dp2": "whole", "pp2": "documents", "tp2": "whole", "tp2-pp2-sequence-llama": "documents",
          "unlike-pipelines-sgd": "whole"}


def masked_data(folder: Path, packing: str) -> list[str]:
    """Write documents of unlike length that count from no token to all, and return the settings that read them."""
    generator = numpy.random.default_rng(1)
    path = folder / "masked.tokens"
    with TokenFileWriter(path, 64, counts=True) as writer:
        for length in generator.integers(2, 60, 400).tolist():
            # Few tokens, of a pattern that a tiny model learns; the first part of each counts seldom.
            tokens = (numpy.arange(length) * int(generator.integers(1, 4)) + int(generator.integers(0, 8))) % 64
            writer.write(tokens, generator.random(length) < generator.choice([0.0, 0.05, 0.9]))
            writer.end_document()
    return ["data=tokens", f"data.path={path}", f"data.packing={packing}", "model.vocab_size=64"]


@in_courses(MASKED_LAYOUTS, ("pp2", "tp2"))
def test_the_mean_is_over_tokens_that_count(name: str, course: list[str], steps: int, tmp_path: Path) -> None:
    data = masked_data(tmp_path, PACKED[name])
    layout = [*SMALL, *MASKED_LAYOUTS[name]]
    known: References = {}
    expected = reference_of(layout, known, tmp_path, [*data, *course])
    assert_as_one_process(train_world(tmp_path, [*COMMON, *layout, *data, *course]).rows, expected, steps)


def conversations(folder: Path) -> list[str]:
    """Write conversations whose answers are of unlike length, and return the settings that read them."""
    generator = numpy.random.default_rng(2)
    rows = [conversation("a" * int(generator.integers(1, 12)), "ab" * int(generator.choice([1, 2, 40])))
            for _ in range(150)]
    path = write_rows(folder / "chat.jsonl", rows)
    model = model_folder(folder / "model", "{% for message in messages %}{{ '<|im_start|>' + message['content'] + "
                                           "'<|im_end|>' }}{% endfor %}")
    return ["data=chat", f"data.path={path}", f"data.tokenizer={model}", f"data.cache={folder / 'cache'}",
            "model.vocab_size=260", "model.sequence_length=64"]


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "dp2" else
                                               pytest.mark.long) for name in MASKED_LAYOUTS])
def test_conversations_train_as_one_process(name: str, tmp_path: Path) -> None:
    data = conversations(tmp_path)
    layout = [*SMALL, *MASKED_LAYOUTS[name], *data]
    if name == "dp2":
        config = compose([*COMMON, *layout])
        samples = open_dataset(config.data, Architecture.from_config(config.model)).train_samples(
            config.train.seed, 1, 0, 16, 16)
        assert samples[:8].counted() != samples[8:].counted(), "the ranks must count unlike numbers of tokens"
    expected = reference_of(layout, {}, tmp_path, [*(each for each in data if each.startswith("data")), *LONG])
    found = train_world(tmp_path, [*COMMON, *layout, *LONG]).rows
    assert [row["counted_tokens"] for row in found] == [row["counted_tokens"] for row in expected]
    assert_as_one_process(found, expected, LONG_STEPS)


def test_unlike_pipelines_do_not_take_the_mean_of_means(tmp_path: Path) -> None:
    """The well-known fault of accumulation: the mean over micro-batches of their means, whatever counts in them."""
    options = [*COMMON, *SMALL, *MASKED_LAYOUTS["unlike-pipelines-sgd"], *masked_data(tmp_path, "whole"),
               "train.steps=1"]
    world = train_world(tmp_path, options)
    config = compose(options)
    architecture = Architecture.from_config(config.model)
    samples = open_dataset(config.data, architecture).train_samples(config.train.seed, 1, 0, 16, 16)
    model = build_stage(architecture, 0, architecture.num_layers, first=True, last=True, seed=config.train.seed)
    with torch.no_grad():
        logits = model(samples.tokens, Documents(samples.documents, samples.tokens.shape[1]))
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), samples.targets.flatten(), reduction="none")
    counts = (samples.targets != NOT_COUNTED).view(8, -1)  # by micro-batch
    sums = losses.view(8, -1).sum(dim=1)
    mean_of_means = float((sums / counts.sum(dim=1).clamp(min=1)).mean())
    assert world.rows[0]["loss"] == pytest.approx(float(sums.sum() / counts.sum()), rel=1e-6)
    assert abs(mean_of_means - world.rows[0]["loss"]) > 0.01


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in LAYOUTS if name not in BY_COMMAND])
def test_layout_trains_as_one_process_for_longer(name: str, tmp_path: Path, references: References) -> None:
    expected = reference_of(LAYOUTS[name], references, tmp_path, LONG)
    assert_as_one_process(train_world(tmp_path, [*COMMON, *LAYOUTS[name], *LONG]).rows, expected, LONG_STEPS)


@pytest.mark.emulated
@pytest.mark.parametrize("name", unless_long(BY_COMMAND, set(BY_COMMAND) - set(DAILY_BY_COMMAND)))
def test_the_command_trains_as_one_process(name: str, tmp_path: Path, references: References) -> None:
    expected = reference_of(LAYOUTS[name], references, tmp_path, LONG)
    found = train(tmp_path, [*COMMON, *LAYOUTS[name], *LONG]).rows
    assert_as_one_process(found, expected, LONG_STEPS)
