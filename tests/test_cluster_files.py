"""Files of measured links and calibrated GPUs: every value is checked, and what says nothing of a cluster is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc.cluster import read_cluster
from holmes_hpc.cluster.calibrated import read_calibrated
from holmes_hpc.cluster.measured import read_measured
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.planner import plan

LINK = {"network": "ethernet", "between": ["ib", "roce"], "nodes": ["ib-0", "roce-0"], "bandwidth_gbps": 8.0,
        "latency_us": 60.0, "pairs": 1, "together_gbps": None}
GPU = {"gpu": "a100-80g", "precision": "float32", "slowdown": 1.5, "lowest": 1.4, "highest": 1.6, "actions": 12}
MISSING = object()


def written(path: Path, key: str, *records: Any) -> str:
    path.write_text(json.dumps({"format": 1, key: records}))
    return str(path)


def changed(record: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    return {name: each for name, each in {**record, key: value}.items() if each is not MISSING}


@pytest.mark.parametrize(("key", "value", "valid"), [
    *(("bandwidth_gbps", value, "a finite number above 0")
      for value in (0, -1.0, "25", None, True, [8], float("nan"), float("inf"), MISSING)),
    *(("latency_us", value, "a finite number from 0") for value in (-0.1, None, "1", float("nan"))),
    *(("together_gbps", value, "a finite number above 0, or null") for value in (0, -3, "9", float("inf"))),
    *(("pairs", value, "a whole number from 1") for value in (0, 1.5, "2", True, None)),
    *(("between", value, "a list of two names") for value in (["ib"], [], "ib", ["ib", 1], ["ib", "roce", "x"], None)),
    *(("nodes", value, "a list of two names") for value in (["ib-0"], None)),
    *(("network", value, "one of local, ib, roce") for value in ("infiniband", None, 3)),
])
def test_a_wrong_value_of_a_measured_link_is_named(tmp_path: Path, key: str, value: Any, valid: str) -> None:
    path = written(tmp_path / "links.json", "links", LINK, changed(LINK, key, value))
    with pytest.raises(ConfigurationError) as error:
        read_measured(path)
    said = str(error.value)
    assert f"cluster.measured={path}" in said and f"links[1].{key} is " in said and f"valid: {valid}" in said
    assert "holmes probe" in said


@pytest.mark.parametrize(("key", "value", "valid"), [
    *(("slowdown", value, "a finite number above 0") for value in (0, -1, "1.5", None, float("nan"), MISSING)),
    *(("lowest", value, "a finite number from 0") for value in ("1", -1)),
    ("highest", None, "a finite number above 0"),
    *(("highest", value, "a finite number above 0 (1e-12 to 1e+12)") for value in (1e308, 1e-300, 10**400)),
    ("actions", 10**400, "a whole number"),
    ("actions", 1.5, "a whole number from 1"),
    *(("precision", value, "one of float32, float16, bfloat16") for value in ("float23", "tf32", 16)),
    ("gpu", "a1000", "one of a100-40g"),
    ("gpu", ["v100"], "one of a100-40g"),
])
def test_a_wrong_value_of_a_calibrated_gpu_is_named(tmp_path: Path, key: str, value: Any, valid: str) -> None:
    path = written(tmp_path / "gpus.json", "gpus", changed(GPU, key, value))
    with pytest.raises(ConfigurationError) as error:
        read_calibrated(path)
    said = str(error.value)
    assert f"cluster.calibrated={path}" in said and f"gpus[0].{key} is " in said and f"valid: {valid}" in said
    assert "holmes calibrate" in said


@pytest.mark.parametrize("content", [b"[]", b"3", b'{"format": 1}', b'{"format": 1, "links": {}}', b"\xff\xfe",
                                     b'{"format": 1, "links": ["a"]}', b'{"format": 1, "links": [{"speed": 3}]}'])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "links.json"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=f"{path} is no file of `holmes probe`: .*"):
        read_measured(str(path))


def test_a_link_without_its_counts_is_taken(tmp_path: Path) -> None:
    few = {key: LINK[key] for key in ("network", "between", "nodes", "bandwidth_gbps", "latency_us")}
    link, = read_measured(written(tmp_path / "links.json", "links", few))
    assert (link.pairs, link.together_gbps) == (1, None)


def other_links() -> list[dict[str, Any]]:
    """Links that the cluster `mixed` has not: labels and fabrics of another one, and a family of the wrong fabric."""
    return [changed(LINK, "between", ["ib", "far"]),
            {**LINK, "network": "local", "between": ["a100", "a100"]},
            {**LINK, "network": "roce", "between": ["ib", "ib"]},
            {**LINK, "network": "ib", "between": ["ib", "roce"]}]


@pytest.mark.parametrize("number", range(4))
def test_the_links_of_another_cluster_are_refused(tmp_path: Path, number: int) -> None:
    path = written(tmp_path / "links.json", "links", other_links()[number])
    with pytest.raises(ConfigurationError, match="no link of this cluster.*fabrics ib, roce"):
        read_cluster(compose(["+cluster=mixed", f"cluster.measured={path}"]).cluster)


def test_a_plan_notes_the_links_that_it_cannot_use(tmp_path: Path) -> None:
    settings = ["+cluster=mixed", "parallel=megatron"]
    path = written(tmp_path / "links.json", "links", LINK, *other_links())
    notes = plan(compose([*settings, f"cluster.measured={path}"]), mode="slurm").notes
    note, = (note for note in notes if "cluster.measured" in note)
    assert "ethernet between ib and far, local inside a100, roce inside ib, ib between ib and roce;" in note
    path = written(tmp_path / "links.json", "links", LINK)
    made = plan(compose([*settings, f"cluster.measured={path}"]), mode="slurm")
    assert not any("cluster.measured" in note for note in made.notes)


def test_a_plan_notes_a_calibration_that_says_nothing_of_it(tmp_path: Path) -> None:
    def noted(**changes: str) -> list[str]:
        path = written(tmp_path / "gpus.json", "gpus", {**GPU, **changes})
        made = plan(compose(["+cluster=mixed", "parallel=megatron", f"cluster.calibrated={path}"]), mode="slurm")
        return [note for note in made.notes if "cluster.calibrated" in note]

    assert noted() == []
    assert "v100 in float32, and this run computes on a100-80g in float32" in noted(gpu="v100")[0]
    assert "a100-80g in float16," in noted(precision="float16")[0]
