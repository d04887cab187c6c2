"""What is done with a finished plan: nodes are bound to it, tables show it, the engine may refuse it."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from holmes_hpc.cluster import read_cluster
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner import bind, plan, render
from holmes_hpc.values.capabilities import ENGINE, unsupported
from tests.plans_for_tests import MIXED, make


def test_bind_names_the_nodes_or_refuses() -> None:
    made = make(MIXED)
    names = {"ib/0": "n17", "ib/1": "n3", "roce/0": "r1", "roce/1": "r2"}
    bound = bind(made, names)
    assert [place.node for place in bound.ranks] == ["n17", "n17", "n3", "n3", "r1", "r1", "r2", "r2"]
    assert bound.pipelines == made.pipelines
    with pytest.raises(PlanRefusedError, match="no node for roce/1"):
        bind(made, {k: v for k, v in names.items() if k != "roce/1"})
    with pytest.raises(PlanRefusedError, match="no such slot: ib/2"):
        bind(made, {**names, "ib/2": "n4"})
    with pytest.raises(PlanRefusedError, match="n3 is given to several"):
        bind(made, {**names, "ib/0": "n3"})


def test_table_shows_everything_at_a_glance() -> None:
    config = compose([MIXED])
    cluster = read_cluster(config.cluster)
    made = plan(config)
    buffer = io.StringIO()
    Console(file=buffer, width=120).print(render(made, cluster))
    text = buffer.getvalue()
    for word in ("fabrics", "hdr200", "roce200", "stage 0", "layer", "process groups", "ethernet", "predicted",
                 "the cluster as described", "rejected", "megatron"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 120
    place = "note: ib/0 is the first node of the label ib: an emulated or local run calls it ib-0"
    assert place in text
    bound = bind(made, {rank.slot: f"n{rank.slot[-1]}-{rank.fabric}" for rank in made.ranks})
    buffer = io.StringIO()
    Console(file=buffer, width=120).print(render(bound, cluster))
    assert place not in buffer.getvalue() and "n0-ib" in buffer.getvalue(), "machines are known"
    for mode, words, note in (("emulated", "emulating the cluster", "which emulates the cluster"),
                              ("local", "all ranks as plain processes", "which runs all ranks as plain processes")):
        buffer = io.StringIO()
        Console(file=buffer, width=120).print(render(plan(config, mode), cluster))
        text = " ".join(buffer.getvalue().split())
        assert f"predicted for this machine, {words}: " in text and f"predicted for this machine, {note}" in text
    assert "emulates" not in text and "emulating" not in text, "a local run emulates nothing"


def test_the_engine_says_what_it_cannot_run() -> None:
    assert unsupported(compose([MIXED])) == []
    assert unsupported(compose([MIXED, "parallel.schedule=gpipe", "parallel.warmup_extra=2"])) == []
    assert unsupported(compose([MIXED, "parallel.tensor=2", "parallel.sequence_parallel=true",
                                "parallel.recompute=full"])) == []
    assert unsupported(compose([MIXED, "parallel.chunks=2", "parallel.turns=true"])) == []
    problems = unsupported(compose([MIXED, "parallel.cross_fabric_dtype=bfloat16"]))
    assert len(problems) == 1
    assert "parallel.cross_fabric_dtype=bfloat16" in problems[0] and "float32 or null" in problems[0]
    less = dataclasses.replace(ENGINE, precisions=("float32",), schedules=("gpipe", "1f1b"), turns=False)
    problems = unsupported(compose([MIXED, "train.precision=bfloat16", "parallel.schedule=zero_bubble",
                                    "parallel.turns=true"]), abilities=less)
    assert len(problems) == 3
    assert "auto, gpipe or 1f1b" in problems[0]
