"""Cluster files against what Slurm tells, and the first one that is written from it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from holmes_hpc import cli
from holmes_hpc.cluster import read_cluster
from holmes_hpc.cluster.slurm import SlurmNode
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.node.diagnosis import node_findings
from holmes_hpc.submit import fit
from holmes_hpc.submit.fit import check_fit, check_submission, matches
from holmes_hpc.submit.inventory import Inventory, read_saved
from holmes_hpc.submit.site import Guess, Label, _lines, describe_site, find_labels
from tests.slurm_cluster import SlurmCluster
from tests.slurm_data import text
from tests.slurm_runs import HOLDING, holmes
from tests.test_launch_nodes import lay_out
from tests.test_slurm_annotate import CENTRE, CENTRE_TOPOLOGY

FABRICS = """\
NodeName=a[1-4] Gres=gpu:a100:4 Feature=ib_hdr
NodeName=b[1-4] Gres=gpu:a100:4 Feature=ib_qdr
NodeName=o[1-2] Gres=gpu:h100:8 Feature=OPA
PartitionName=gpu Nodes=a[1-4],b[1-4],o[1-2] MaxTime=24:00:00
"""
TABLE = """\
PARTITION    NODES GRES          NODELIST        AVAIL_FEATURES
cpu*         61    (null)        c[003-063]      rome
ampere       23    gpu:a100:4    g[001-023]      AMP,GPU_MEM:40GB,IB:HDR
"""


def inventory(saved: str = FABRICS, topology: str | None = None) -> Inventory:
    return read_saved(saved, topology)


def facts(*overrides: str, of: Inventory | None = None) -> list[str]:
    config = compose(["+cluster=ib", "cluster.partitions.ib.partition=gpu", *overrides])
    return [f"{'FATAL ' if fact.fatal else ''}{fact}" for fact in check_fit(config.cluster, of or inventory())]


def test_a43_a_partition_of_fabrics_that_cannot_talk_asks_for_a_constraint() -> None:
    found = facts()
    assert len(found) == 1
    assert found[0].startswith("FATAL cluster.partitions.ib: the partition gpu holds nodes of several fabrics")
    assert "ib-hdr200: a1, a2, a3, a4" in found[0]
    assert "cluster.partitions.ib.constraint='ib_hdr'" in found[0]
    assert facts("cluster.partitions.ib.constraint=ib_hdr") == []
    # Of the nodes with eight GPUs all are in one fabric, though another one than described.
    wrong = facts("cluster.partitions.ib.gpus_per_node=8", "cluster.partitions.ib.nodes=2")
    assert "FATAL" in wrong[0] and "Slurm says opa of o1, o2 (feature OPA)" in wrong[0]
    assert facts("cluster.partitions.ib.nic=eth25") == []  # every node has Ethernet


def test_a43_generations_that_do_reach_each_other_can_be_said_to() -> None:
    same = read_saved(FABRICS.replace("OPA", "none"))
    both = facts(of=same)
    assert "cluster.features (ib_hdr: ib)" in both[0]
    config = compose(["+cluster=ib", "cluster.partitions.ib.partition=gpu",
                      "+cluster.features={ib_hdr: ib, ib_qdr: ib}"])
    told = Inventory.of(list(same.nodes.values()), [], None, dict(config.cluster.features))
    assert [fact for fact in check_fit(config.cluster, told) if fact.fatal] == []


@pytest.mark.parametrize("state", ["DOWN", "DRAIN", "INACTIVE"])
def test_a_first_description_names_no_closed_partition_where_an_open_one_has_the_nodes(state: str) -> None:
    closed = f"PartitionName=a Nodes=a[1-4],b[1-4],o[1-2] State={state}\n"
    assert {label.partition.value for label in find_labels(inventory(closed + FABRICS))} == {"gpu"}
    assert {label.partition.value for label in find_labels(inventory(FABRICS.replace("MaxTime", "State=DOWN MaxTime")))
            } == {"gpu"}


def test_numbers_that_a_partition_cannot_give() -> None:
    constraint = "cluster.partitions.ib.constraint=ib_hdr"
    assert "wants 5 nodes, and the partition gpu has 4 with the features ib_hdr: the job would wait for ever" in facts(
        constraint, "cluster.partitions.ib.nodes=5")[0]
    assert "no node of the partition gpu has the features fast" in facts("cluster.partitions.ib.constraint=fast")[0]
    assert "0 have so many (the most: 4)" in facts(constraint, "cluster.partitions.ib.gpus_per_node=16")[0]
    assert facts(constraint, "cluster.partitions.ib.exclude='a[1-3]'")[0].startswith("FATAL")


def test_a_job_that_would_wait_for_ever_is_not_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "ask_slurm", lambda features, partitions, cluster: inventory())
    wanted = ["+cluster=ib", "cluster.partitions.ib.partition=gpu", "cluster.partitions.ib.constraint=ib_hdr"]
    check_submission(compose([*wanted, "cluster.partitions.ib.nodes=4"]))
    with pytest.raises(ConfigurationError, match=r"wants 5 nodes.*wait for ever; lower cluster\.partitions\.ib\.nodes"):
        check_submission(compose([*wanted, "cluster.partitions.ib.nodes=5"]))


def test_constraints() -> None:
    features = ("ib", "hdr", "a100")
    assert matches("ib&hdr", features) and matches("x|a100", features) and matches(None, features)
    assert matches("ib&x", features) is False
    assert matches("[ib*2&roce*2]", features) is None


def test_site_describes_the_nodes_with_gpus_and_how_to_ask_for_them() -> None:
    labels = {label.name: label for label in find_labels(inventory())}
    assert {name: (len(label.nodes), label.constraint, label.gres) for name, label in labels.items()} == {
        "ib-hdr200": (4, "ib_hdr", "gpu:a100:4"), "ib-qdr40": (4, "ib_qdr", "gpu:a100:4"), "opa": (2, None, None)}
    assert labels["opa"].gpu == Guess("h100", "Slurm says h100: one of h100, h100-pcie")
    centre = {label.name: label for label in find_labels(inventory(CENTRE, CENTRE_TOPOLOGY))}
    assert {name: (label.partition.value, label.gpu.value, label.nic.value, label.gpus_per_node)
            for name, label in centre.items()} == {
        "opa": ("debug", "p100", "opa100", 2), "ib-IBG": ("general-compute", "v100", "hdr200", 2)}
    table = find_labels(inventory(TABLE))
    assert [(label.partition.value, label.gpu.value, label.nic.value) for label in table] == [
        ("ampere", "a100-40g", "hdr200")]


def test_site_tells_urgent_partitions_from_ordinary_ones_and_gpus_by_resource() -> None:
    told = read_saved(text("scontrol-node.txt"), text("topology.conf"))
    assert [(label.name, len(label.nodes)) for label in find_labels(told)] == [("ib", 2), ("roce", 2)]
    mixed = read_saved("NodeName=n1 Gres=gpu:v100:2\nNodeName=n2 Gres=gpu:t4:2\nPartitionName=p Nodes=n[1-2]\n")
    assert [label.gres for label in find_labels(mixed)] == ["gpu:v100:2", "gpu:t4:2"]


def test_a_table_without_partitions_is_described_with_a_guess() -> None:
    told = inventory("NODELIST  GRES        AVAIL_FEATURES\na[1-2]    gpu:a100:4  ib_hdr\nc1        (null)      rome\n")
    assert [(label.partition.value, bool(label.partition.doubt), len(label.nodes)) for label in find_labels(told)] == [
        ("ib", True, 2)]
    assert "    partition: ib  # ? the text names no partition" in describe_site(told, "ours")


def test_partitions_by_sets_of_nodes() -> None:
    sets = FABRICS.replace("Nodes=a[1-4],b[1-4],o[1-2] MaxTime=24:00:00", "Nodes=ib,o1") + (
        "PartitionName=opa Nodes=others\nNodeSet=ib Nodes=a[1-4] Feature=ib_qdr\nNodeSet=others Feature=OPA\n")
    told = inventory(sets)
    assert [node.name for node in told.nodes_of("gpu")] == [f"{kind}{number}" for kind in "ab"
                                                            for number in range(1, 5)] + ["o1"]
    assert [node.name for node in told.nodes_of("opa")] == ["o1", "o2"]
    assert told.nodes["b2"].partitions == ("gpu",)


@pytest.mark.parametrize("saved", [FABRICS, CENTRE, TABLE], ids=["fabrics", "centre", "table"])
def test_the_written_file_is_a_cluster_file(saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nodes").write_text(saved)
    path = tmp_path / "site" / "cluster" / "ours.yaml"
    assert cli.run(["site", "ours", "--nodes", str(tmp_path / "nodes"), "--output", str(path)]) == 0
    config = compose([f"hydra.searchpath=[{tmp_path / 'site'}]", "+cluster=ours"])
    assert read_cluster(config.cluster).world_size > 0
    assert [fact for fact in check_fit(config.cluster, inventory(saved)) if fact.fatal] == []
    assert "marked `# ?`" in capsys.readouterr().err
    assert cli.run(["site", "ours", "--nodes", str(tmp_path / "nodes"), "--output", str(path)]) == 2
    assert "--force" in capsys.readouterr().err
    assert describe_site(inventory(saved), "ours") == path.read_text()


def test_ethernet_nics_of_the_written_file_have_no_slower_uplink_unasked(tmp_path: Path) -> None:
    saved = "NodeName=e[1-4] Gres=gpu:v100:4 Feature=100gbe\nPartitionName=gpu Nodes=e[1-4]\n"
    path = tmp_path / "cluster" / "ours.yaml"
    path.parent.mkdir()
    path.write_text(describe_site(inventory(saved), "ours"))
    config = compose([f"hydra.searchpath=[{tmp_path}]", "+cluster=ours"])
    assert {node.ethernet_gbps for node in read_cluster(config.cluster).nodes} == {100}


def test_doctor_shows_a_nodes_adapters(tmp_path: Path) -> None:
    root = lay_out(tmp_path, {"lo": "unknown", "eth0": "up", "ib1": "down"}, {
        "mlx5_0": ("InfiniBand", "4: ACTIVE", "200 Gb/sec (4X HDR)"),
        "mlx5_1": ("Ethernet", "1: DOWN", "40 Gb/sec (4X QDR)")})
    config = compose([], cluster_required=False)
    shown = [str(finding) for finding in node_findings(config, {"NCCL_NET": "IB"}, None, root)]
    assert any("mlx5_0 port 1: InfiniBand (ib), ACTIVE, 200 Gb/s" in line for line in shown)
    assert any(line.startswith("note") and "mlx5_1 port 1: Ethernet (roce), DOWN" in line for line in shown)
    assert any("down: ib1" in line for line in shown)
    assert any("NCCL_NET=IB is set" in line for line in shown)


@pytest.mark.slurm
def test_site_doctor_and_submission_on_a_real_slurm(slurm: SlurmCluster) -> None:
    holmes(slurm, "site", ["ours", "--output", "site/cluster/ours.yaml"])
    config = compose([f"hydra.searchpath=[{slurm.shared / 'site'}]", "+cluster=ours"])
    assert {label: (part.partition, part.nodes, part.gpus_per_node, part.nic)
            for label, part in config.cluster.partitions.items()} == {
        "ib": ("ib", 2, 2, "hdr200"), "roce": ("roce", 2, 2, "roce100")}
    ours = ["hydra.searchpath=[site]", "+cluster=ours"]
    login = holmes(slurm, "doctor", ours).stdout
    assert "the cluster file agrees" in login
    assert "mixed: 4 of 4 nodes in service" in login and "needs a constraint" in login
    assert "tree: ib-sw, roce-sw, eth-core" in login
    slurm.run("ip link set ib0 down", "ib-2")
    for machine, status in (("ib-1", 0), ("ib-2", 1)):
        line = shlex.join(_doctor(ours))
        done = slurm.run(f"srun -p ib -w {machine} -n1 {line}", check=False, timeout_seconds=120)
        assert done.status == status, done.stdout + done.stderr
        assert ("ib0 is down" in done.stdout) == bool(status)
        assert "step, restart 0" in done.stdout
    refused = holmes(slurm, "train", ["+cluster=ib", "cluster.partitions.ib.partition=mixed"], check=False)
    assert refused.status == 2
    assert "cluster.partitions.ib.constraint='ib'" in refused.stderr


def _doctor(overrides: list[str]) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in HOLDING.items()), sys.executable, "-m", "holmes_hpc.doctor",
            *overrides]


@pytest.mark.parametrize("value", ["*a", "&a", "a: b", "no", "null", "1e5", "~", "[a]", "{a", "a #b", "'", '"',
                                   "!x", "|", "-", "@a", "${oc.env:HOME}", "${a}", "\\", "a b", " a", "é",
                                   "gpu:h200:4", "a&b", "[a|b]"])
def test_names_of_slurm_are_values_of_the_file_as_they_are(value: str, tmp_path: Path) -> None:
    """A partition called `*a` made a file that nobody can read."""
    words = _lines(Label("ib", Guess(value, f"seen\u2028{value}"), (SlurmNode("n1"),), Guess("cpu"), 2,
                         Guess("eth25"), 1, "ib", value, None, "a\u0085remark: x"))
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "theirs.yaml").write_text("\n".join(["name: theirs", "partitions:", *words]) + "\n")
    config = compose(["+cluster=theirs", f"hydra.searchpath=[{tmp_path}]"])
    assert config.cluster.partitions.ib.partition == config.cluster.partitions.ib.constraint == value
