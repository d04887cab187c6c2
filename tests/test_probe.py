"""Links as a probe measures them, and plans that use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig

from holmes_hpc.cluster import Machine, read_cluster
from holmes_hpc.cluster.measured import MeasuredLink, to_json
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.planner import plan
from holmes_hpc.probe import act, table
from holmes_hpc.runs import RunFolder
from tests.runs_for_tests import run

LINKS = [
    MeasuredLink("local", ("ib", "ib"), ("ib-1", "ib-1"), 900.0, 5.0),
    MeasuredLink("ib", ("ib", "ib"), ("ib-1", "ib-2"), 150.0, 2.5),
    MeasuredLink("ethernet", ("roce", "ib"), ("roce-1", "ib-1"), 8.0, 60.0, pairs=4, together_gbps=9.0),
]


def machine(tmp_path: Path, *overrides: str) -> Machine:
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(to_json(LINKS, backend="gloo")))
    config = compose(["+cluster=mixed", f"cluster.measured={path}", *overrides])
    return Machine.described(read_cluster(config.cluster))


def test_measured_links_go_before_described_ones(tmp_path: Path) -> None:
    measured = machine(tmp_path)
    ib, other_ib, roce, other_roce = measured.cluster.nodes
    assert measured.link("ib", ib, other_ib).bandwidth_gbps == 150
    assert measured.link("ib", ib, other_ib).latency_us == 2.5
    assert measured.link("local", ib, ib).bandwidth_gbps == 900
    assert measured.link("ethernet", ib, roce).bandwidth_gbps == 8
    assert measured.node_bandwidth_gbps(ib, "ib") == 150
    assert measured.node_bandwidth_gbps(roce, "ethernet") == 8
    assert measured.trunk_gbps("ib", "roce") == 9
    # What was not measured stays as described.
    described = Machine.described(read_cluster(compose(["+cluster=mixed"]).cluster))
    assert measured.link("roce", roce, other_roce) == described.link("roce", roce, other_roce)


@pytest.mark.parametrize(("pairs", "together", "trunk"), [(1, None, 10), (4, 31.0, None), (4, 9.0, 9)])
def test_only_pairs_at_once_tell_of_a_trunk(tmp_path: Path, pairs: int, together: float | None, trunk: float | None
                                            ) -> None:
    path = tmp_path / "probe.json"
    link = MeasuredLink("ethernet", ("roce", "ib"), ("roce-1", "ib-1"), 8.0, 60.0, pairs, together)
    path.write_text(json.dumps(to_json([link])))
    config = compose(["+cluster=mixed", f"cluster.measured={path}",
                      "cluster.links=[{between: [ib, roce], shared_gbps: 10}]"])
    assert Machine.described(read_cluster(config.cluster)).trunk_gbps("ib", "roce") == trunk


def test_an_emulation_keeps_its_own_rates(tmp_path: Path) -> None:
    emulated = Machine.emulated(machine(tmp_path).cluster, cores=2)
    assert emulated.link("ib", *emulated.cluster.nodes[:2]).bandwidth_gbps == 2


def test_a_slower_measured_link_makes_a_slower_plan(tmp_path: Path) -> None:
    settings = ["+cluster=mixed", "parallel=holmes", "model=gpt_3_6b", "train.global_batch_size=64"]
    path = tmp_path / "slow.json"
    path.write_text(json.dumps(to_json([MeasuredLink("ethernet", ("ib", "roce"), ("ib-1", "roce-1"), 0.5, 60.0)])))
    usual, slow = (plan(compose([*settings, *more]), mode="slurm") for more in ([], [f"cluster.measured={path}"]))
    assert slow.predicted.step_seconds > usual.predicted.step_seconds
    note, = set(slow.notes) - set(usual.notes)
    assert note.startswith("rates as measured, not as described: ethernet between ib and roce; ")


@pytest.mark.parametrize(("further", "words"), [
    ({"cluster": "mixed", "backend": "gloo", "time": "2026-12-01T10:00:00+00:00", "emulated": True},
     "measured on mixed, by gloo, at 2026-12-01T10:00:00+00:00, emulated, so they are not the cluster's own"),
    ({"cluster": "ours", "backend": "nccl", "emulated": False}, "measured on ours, by nccl, not emulated"),
    ({"cluster": 5}, "its file does not say where they were measured"),
])
def test_a_plan_says_where_its_links_were_measured(tmp_path: Path, further: dict[str, Any], words: str) -> None:
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(to_json(LINKS, **further)))
    config = compose(["+cluster=mixed", "parallel=megatron", f"cluster.measured={path}"])
    assert any(note.startswith("rates as measured") and note.endswith(f"; {words}")
               for note in plan(config, mode="slurm").notes)
    assert not any(note.startswith("rates as measured") for note in plan(config, mode="emulated").notes)


def test_a_wrong_file_is_named(tmp_path: Path) -> None:
    for content, words in ((None, "No such file"), ("{}", "no file of `holmes probe`"), ("[", "no file of")):
        path = tmp_path / "wrong.json"
        if content is not None:
            path.write_text(content)
        with pytest.raises(ConfigurationError, match=words):
            read_cluster(compose(["+cluster=mixed", f"cluster.measured={path}"]).cluster)


def test_a_trunk_is_what_pairs_share_and_the_table_says_so() -> None:
    assert LINKS[2].trunk_gbps == 9
    assert MeasuredLink("ethernet", ("a", "b"), ("a", "b"), 8.0, 60.0, 4, 31.0).trunk_gbps is None
    assert "9 Gb/s by 4 pairs, a shared trunk" in table(LINKS)


@pytest.mark.emulated
def test_probe_finds_the_emulated_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    done = run(tmp_path, "probe", ["+cluster=mixed", "launch.mode=emulated"])
    assert done.status == 0, done.stderr
    assert done.folder is not None
    links = {(link["network"], *sorted(set(link["between"]))): link
             for link in json.loads((done.folder / "probe.json").read_text())["links"]}
    assert set(links) == {("local", "ib"), ("local", "roce"), ("ib", "ib"), ("roce", "roce"),
                          ("ethernet", "ib", "roce")}
    # Cores that are busy elsewhere may make a link slower than it is shaped, never faster.
    for key, rate in ((("ib", "ib"), 2.0), (("roce", "roce"), 1.5), (("ethernet", "ib", "roce"), 0.2)):
        assert rate * 0.3 < links[key]["bandwidth_gbps"] < rate * 1.05
    assert links["ethernet", "ib", "roce"]["pairs"] == 2
    assert "ethernet   ib - roce" in done.stdout
    # The links are the emulated cluster's, the layers this machine's own.
    (kept,) = (tmp_path / "config" / "holmes_hpc" / "measured").iterdir()
    assert kept.name == "mixed-emulated.json" and f"cluster.profiled={kept}" in done.stdout
    assert "cluster.measured=" not in done.stdout
    layers = json.loads(kept.read_text())["layers"]
    assert {layer["gpu"] for layer in layers} == {"cpu"}
    assert {layer["unit"] for layer in layers} == {"layer", "head", "embedding", "optimizer"}
    assert done.result["status"] == "completed"


def test_a_probe_shows_its_own_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    """Neither that of another job in the same folder, nor its own once more by the link `slurm-N`."""
    def probe(config: DictConfig) -> tuple[int, RunFolder]:
        own, other = (RunFolder.create(tmp_path / "runs", "mixed") for _ in range(2))
        for folder in (own, other):
            folder.probe_path.write_text(json.dumps(to_json(LINKS[:1], backend="gloo", emulated=True)))
        (own.path.parent / "slurm-7").symlink_to(own.path.name)
        return 0, own

    monkeypatch.setattr("holmes_hpc.launch.train.run", probe)
    act(compose(["+cluster=mixed", f"run.folder={tmp_path / 'runs'}"]))
    assert capsys.readouterr().out.count("local ") == 1
