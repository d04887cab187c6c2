"""What a node has against what the cluster file says of it, on laid-out /sys trees."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holmes_hpc.cluster import ClusterDescription, read_cluster
from holmes_hpc.cluster.nccl import check_environment, device_index, node_environment
from holmes_hpc.cluster.slurm import read_step
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import ConfigurationError, NetworkError, PlanRefusedError
from holmes_hpc.launch.node.backend import decide_backend
from holmes_hpc.launch.node.mismatch import Mismatch, find_mismatches
from holmes_hpc.launch.node.node_report import NodeReport, read_node
from holmes_hpc.launch.slurm import rank as slurm_rank
from holmes_hpc.launch.slurm.allocation import Allocation, ExcludeNodesError, GivenNode, allocate
from holmes_hpc.launch.slurm.stopping import Stopping
from holmes_hpc.planner import bind, plan
from holmes_hpc.runs import Notes, RunFolder, Start
from holmes_hpc.values import Plan

ADDRESSES = {"lo": "127.0.0.1", "eth0": "10.0.0.1", "ib0": "10.1.0.1", "roce0": "10.2.0.1"}
SETTINGS = ["+cluster=mixed", "parallel=holmes", "model.tied_embeddings=false",
            *(f"cluster.partitions.{label}.gpus_per_node=1" for label in ("ib", "roce"))]
GLOO = "launch.backend=gloo"


def lay_out(root: Path, interfaces: dict[str, str], ports: dict[str, tuple[str, str, str]], gpus: int = 1) -> Path:
    """Lay out /sys and /proc of a node: interface to state; adapter to link layer, state and rate of its port 1."""
    for name, state in interfaces.items():
        (root / "sys/class/net" / name).mkdir(parents=True)
        (root / "sys/class/net" / name / "operstate").write_text(f"{state}\n")
        (root / "sys/class/net" / name / "speed").write_text("25000\n" if name.startswith("eth") else "-1\n")
    (root / "sys/class/net/bonding_masters").write_text("\n")
    for adapter, (layer, state, rate) in ports.items():
        folder = root / "sys/class/infiniband" / adapter / "ports/1"
        folder.mkdir(parents=True)
        for name, text in (("link_layer", layer), ("state", state), ("rate", rate)):
            (folder / name).write_text(f"{text}\n")
    for number in range(gpus):
        (root / "proc/driver/nvidia/gpus" / f"0000:{number:02x}:00.0").mkdir(parents=True)
    return root


UP = {"lo": "unknown", "eth0": "up", "ib0": "up", "roce0": "up"}
HDR = ("InfiniBand", "4: ACTIVE", "200 Gb/sec (4X HDR)")
ROCE = ("Ethernet", "4: ACTIVE", "200 Gb/sec (4X HDR)")


def report(tmp_path: Path, name: str, interfaces: dict[str, str] | None = None,
           ports: dict[str, tuple[str, str, str]] | None = None, gpus: int = 1) -> NodeReport:
    return read_node(name, lay_out(tmp_path / name, interfaces or UP, ports or {}, gpus), ADDRESSES.get)


def mixed(*overrides: str) -> ClusterDescription:
    return read_cluster(compose([*SETTINGS, *overrides]).cluster)


def found(reports: list[NodeReport], *overrides: str, verbs: bool = True) -> list[Mismatch]:
    return find_mismatches(list(zip(mixed(*overrides).nodes, reports, strict=True)), uses_verbs=verbs)


def test_report_reads_ports_interfaces_and_speeds(tmp_path: Path) -> None:
    read = report(tmp_path, "n1", {"lo": "unknown", "eth0": "up", "ib0": "up", "ib1": "down"},
                  {"mlx5_0": HDR, "mlx5_1": ("Ethernet", "1: DOWN", "40 Gb/sec (4X QDR)")}, gpus=4)
    assert read.interfaces == {"lo": "127.0.0.1", "eth0": "10.0.0.1", "ib0": "10.1.0.1"}
    assert read.down == ("ib1",)
    assert read.speeds_gbps == {"eth0": 25.0}
    assert [(port.adapter, port.family, port.state, port.rate_gbps) for port in read.ports] == [
        ("mlx5_0", "ib", "ACTIVE", 200), ("mlx5_1", "roce", "DOWN", 40)]
    assert read.active_adapters("ib") == ["mlx5_0"]
    assert read.gpus == 4
    assert NodeReport.from_json(read.to_json()) == read


def good(tmp_path: Path) -> list[NodeReport]:
    return [report(tmp_path, "ib-1", ports={"mlx5_0": HDR}), report(tmp_path, "ib-2", ports={"mlx5_3": HDR}),
            report(tmp_path, "roce-1", ports={"mlx5_0": ROCE}), report(tmp_path, "roce-2", ports={"mlx5_0": ROCE})]


def test_a37_nodes_as_described_pass_with_unlike_names_of_adapters(tmp_path: Path) -> None:
    reports = good(tmp_path)
    assert found(reports) == []
    assert found(reports, verbs=False) == []
    # Names may differ from label to label, as long as their number is the same in a fabric.
    assert found(reports, "cluster.partitions.roce.hca=mlx5_0") == []


@pytest.mark.parametrize(("ports", "gpus", "words"), [
    ({}, 1, "1 active ib ports (nic: hdr200; nics_per_node: 1), found no InfiniBand or RoCE adapter"),
    ({"mlx5_0": ("InfiniBand", "1: DOWN", "10 Gb/sec (4X SDR)")}, 1, "found mlx5_0/1 (link layer InfiniBand) DOWN"),
    ({"mlx5_0": ("InfiniBand", "2: INIT", "200 Gb/sec (4X HDR)")}, 1, "found mlx5_0/1 (link layer InfiniBand) INIT"),
    ({"mlx5_0": ROCE}, 1, "found mlx5_0/1 (link layer Ethernet) ACTIVE"),
    ({"mlx5_0": ("InfiniBand", "4: ACTIVE", "50 Gb/sec (1X HDR)")}, 1,
     "200 Gb/s on each ib port (nic: hdr200), found mlx5_0/1 at 50 Gb/s"),
    ({"mlx5_0": HDR}, 0, "1 GPU (a100-80g), found 0"),
    ({"mlx5_0": HDR, "mlx5_1": HDR}, 1, "1 adapters as on the other nodes of the fabric ib, found 2"),
])
def test_a34_one_bad_node_is_named_with_what_it_has(tmp_path: Path, ports: dict[str, tuple[str, str, str]], gpus: int,
                                                words: str) -> None:
    reports = good(tmp_path)
    three = ["cluster.partitions.ib.nodes=3"]
    bad = report(tmp_path, "ib-3", ports=ports, gpus=gpus)
    assert found([*reports[:2], bad, *reports[2:]], *three)[0].node == "ib-3"
    problems = found([*reports[:2], bad, *reports[2:]], *three)
    assert len(problems) == 1
    assert words in str(problems[0])
    assert "cluster.partitions.ib." in str(problems[0])


def test_named_adapters_have_to_be_there(tmp_path: Path) -> None:
    problems = found(good(tmp_path), "cluster.partitions.ib.hca='mlx5_0:1'")
    assert [problem.node for problem in problems] == ["ib-2"]
    assert "InfiniBand link layer) on mlx5_0, found mlx5_3/1" in str(problems[0])


def test_gloo_needs_interfaces_and_adapters_only_where_others_have_them(tmp_path: Path) -> None:
    reports = [report(tmp_path, "ib-1"), report(tmp_path, "ib-2", {"lo": "unknown", "eth0": "up", "ib0": "down"}),
               report(tmp_path, "roce-1", ports={"mlx5_0": ROCE}), report(tmp_path, "roce-2")]
    problems = found(reports, verbs=False)
    assert [(problem.node, problem.network) for problem in problems] == [("ib-2", "ib"), ("roce-2", "roce")]
    assert "the ib interface ib0 with an IPv4 address, found that ib0 is down" in str(problems[0])
    assert "cluster.partitions.ib.fabric_interface" in problems[0].remedy
    absent = found(reports, "cluster.partitions.roce.interface=eno1", verbs=False)
    assert [problem.found for problem in absent if problem.expected.startswith("the ethernet interface")] == [
        "no eno1, but eth0, ib0, roce0"] * 2


def given(reports: list[NodeReport], order: list[int], components: bool = True) -> list[GivenNode]:
    return [GivenNode(reports[index].node, (rank,), index // 2 if components else None, reports[index])
            for rank, index in enumerate(order)]


def allocated(tmp_path: Path, order: list[int], *overrides: str, before: Plan | None = None,
              reports: list[NodeReport] | None = None) -> tuple[Plan, Allocation]:
    config = compose([*SETTINGS, *overrides])
    return allocate(config, read_cluster(config.cluster), before or plan(config, mode="slurm"),
                    given(reports or good(tmp_path), order))


def test_a_plan_for_another_order_is_not_taken_again(tmp_path: Path) -> None:
    usual, where = allocated(tmp_path, [0, 1, 2, 3])
    assert [place.node for place in usual.ranks] == ["ib-1", "ib-2", "roce-1", "roce-2"]
    assert where.host == ADDRESSES["eth0"]
    reports = good(tmp_path / "second")
    config = compose(SETTINGS)
    turned, _ = allocate(config, read_cluster(config.cluster), usual, given(reports, [2, 3, 0, 1]))
    assert [(place.slot, place.node) for place in turned.ranks][0] == ("roce/0", "roce-1")
    back, _ = allocate(config, read_cluster(config.cluster), turned, given(reports, [0, 1, 2, 3]))
    assert back == usual


def test_mismatch_fails_goes_on_over_ethernet_or_excludes(tmp_path: Path) -> None:
    reports = good(tmp_path)
    reports[1] = dataclasses.replace(reports[1], interfaces={"lo": "127.0.0.1", "eth0": "10.0.0.2"}, down=("ib0",))
    with pytest.raises(NetworkError, match=r"ib-2.*ib0 is down.*on_mismatch=ethernet"):
        allocated(tmp_path, [0, 1, 2, 3], GLOO, reports=reports)
    with pytest.raises(ExcludeNodesError) as excluded:
        allocated(tmp_path, [0, 1, 2, 3], GLOO, "launch.on_mismatch=exclude_node", reports=reports)
    assert excluded.value.nodes == ("ib-2",)
    assert excluded.value.exit_status == 3
    over, where = allocated(tmp_path, [0, 1, 2, 3], GLOO, "launch.on_mismatch=ethernet", reports=reports)
    assert where.ethernet_only == ("ib-2",)
    with_bad = [group for group in over.groups if 1 in group.ranks and len(group.ranks) > 1]
    assert {group.network for group in with_bad} == {"ethernet"}
    assert "roce" in {group.network for group in over.groups}


def test_ethernet_cannot_stand_in_for_itself_and_a_wrong_description_excludes_nobody(tmp_path: Path) -> None:
    reports = good(tmp_path)
    with pytest.raises(NetworkError, match="Ethernet does not help"):
        allocated(tmp_path, [0, 1, 2, 3], GLOO, "launch.on_mismatch=ethernet", "cluster.partitions.ib.interface=eno1",
                  reports=reports)
    with pytest.raises(NetworkError, match=r"cluster\.partitions\.ib is wrong rather than they") as error:
        allocated(tmp_path, [0, 1, 2, 3], GLOO, "launch.on_mismatch=exclude_node",
                  "cluster.partitions.ib.fabric_interface=ib7", reports=reports)
    assert not isinstance(error.value, ExcludeNodesError)


def test_auto_is_nccl_for_all_where_nodes_report_gpus(tmp_path: Path) -> None:
    with_gpus = good(tmp_path)
    without = [dataclasses.replace(each, gpus=0) for each in with_gpus]
    one_without = [*with_gpus[:3], without[3]]
    described = mixed().nodes
    on_cpus = mixed(*(f"cluster.partitions.{label}.gpu=cpu" for label in ("ib", "roce"))).nodes
    for wanted, nodes, reports, backend in (
            ("auto", described, with_gpus, "nccl"), ("gloo", described, with_gpus, "gloo"),
            ("auto", described, without, "gloo"), ("nccl", described, without, "nccl"),
            ("auto", on_cpus, with_gpus, "gloo"), ("auto", described, one_without, "nccl")):
        assert decide_backend(wanted, list(zip(nodes, reports, strict=True))).name == backend
    with pytest.raises(NetworkError, match=r"node roce-2: expected 1 GPU .*found 0"):
        allocated(tmp_path, [0, 1, 2, 3], reports=one_without)


OF_NCCL = {"NCCL_IB_HCA": "=mlx5_0", "NCCL_IB_GID_INDEX": "3", "NCCL_SOCKET_IFNAME": "=eth0",
           "CUDA_DEVICE_MAX_CONNECTIONS": "32"}


@pytest.mark.parametrize(("backend", "gpus", "environment"), [
    ("auto", 1, OF_NCCL), ("nccl", 1, OF_NCCL), ("auto", 0, {}),
])
def test_a_rank_is_given_its_nodes_adapters_wherever_nccl_is_used(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, gpus: int, environment: dict[str, str]) -> None:
    told: dict[str, str] = {}
    step = {"SLURM_JOB_ID": "5", "SLURM_STEP_ID": "0", "SLURM_JOB_NODELIST": "n1", "SLURM_STEP_NODELIST": "n1",
            "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_LOCALID": "0",
            "SLURMD_NODENAME": "n1", "SLURM_GTIDS": "0"}
    roce = report(tmp_path, "n1", ports={"mlx5_0": ROCE}, gpus=gpus)
    monkeypatch.setattr(slurm_rank, "read_node", lambda name: roce)
    monkeypatch.setattr(slurm_rank.os, "environ", told)
    config = compose(["+cluster=roce", "model.tied_embeddings=false", f"launch.backend={backend}",
                      *(f"cluster.partitions.roce.{setting}" for setting in (
                          "nodes=1", "gpus_per_node=1", "hca=mlx5_0", "gid_index=3", "interface=eth0"))])
    folder = RunFolder.create(tmp_path, "run")
    folder.write_text(folder.plan_path, plan(config, mode="slurm").to_json())
    layout = read_step(step)
    stopping = cast(Stopping, SimpleNamespace(requested=bool))  # a real one takes the signals of this process
    settings = slurm_rank._prepare(config, Start(folder, layout.name), layout, stopping)
    assert (settings.backend, told) == ("nccl" if gpus else "gloo", environment)
    if gpus:
        told["NCCL_NET"] = "IB"
        with pytest.raises(ConfigurationError, match="NCCL_NET=IB"):
            slurm_rank._prepare(config, Start(folder, layout.name), layout, stopping)


def test_ranks_of_a_node_are_consecutive(tmp_path: Path) -> None:
    config = compose(SETTINGS)
    nodes = [dataclasses.replace(node, ranks=(0, 2)) if node.name == "ib-1" else node
             for node in given(good(tmp_path), [0, 1, 2, 3])]
    with pytest.raises(PlanRefusedError, match="cyclic"):
        allocate(config, read_cluster(config.cluster), bind(plan(config, mode="slurm"), {
            f"{label}/{n}": f"{label}-{n}" for label in ("ib", "roce") for n in (0, 1)}), nodes)


def test_a19_device_is_number_zero_where_one_is_visible() -> None:
    assert [device_index(5, 1, 8), device_index(5, 8, 8), device_index(0, 1, 1), device_index(1, 4, 2)] == [0, 5, 0, 1]
    assert [device_index(rank, 2, 4, shared=True) for rank in range(4)] == [0, 1, 0, 1]
    for local_rank, visible, tasks in ((3, 2, 4), (0, 0, 1), (1, 2, 4)):
        with pytest.raises(ConfigurationError, match="gpus_per_node"):
            device_index(local_rank, visible, tasks)


def test_a38_nccl_is_told_exact_names_and_no_network_for_all() -> None:
    assert node_environment("mlx5_0,mlx5_3", 3, "eth0") == {
        "NCCL_IB_HCA": "=mlx5_0,mlx5_3", "NCCL_IB_GID_INDEX": "3", "NCCL_SOCKET_IFNAME": "=eth0"}
    with pytest.raises(ConfigurationError, match="NCCL_NET"):
        check_environment({"NCCL_NET": "IB"})


def test_gpus_of_both_makers_are_counted(tmp_path: Path) -> None:
    assert report(tmp_path, "nvidia", gpus=3).gpus == 3
    root = lay_out(tmp_path / "amd", UP, {}, 0)
    for number, identity in enumerate(("0", "51966", "47806")):  # the first is a CPU
        node = root / "sys/class/kfd/kfd/topology/nodes" / str(number)
        node.mkdir(parents=True)
        (node / "gpu_id").write_text(f"{identity}\n")
    assert read_node("amd", root, ADDRESSES.get).gpus == 2
    assert report(tmp_path, "none", gpus=0).gpus == 0


@pytest.mark.parametrize(("backend", "library", "gpu", "warned"), [
    ("auto", "gloo", "a100-80g", True), ("auto", "nccl", "a100-80g", False), ("gloo", "gloo", "a100-80g", False),
    ("auto", "gloo", "cpu", False),
])
def test_ranks_without_the_described_gpus_say_so_to_whoever_follows(tmp_path: Path, backend: str, library: str,
                                                                    gpu: str, warned: bool) -> None:
    config = compose(["+cluster=mixed", f"launch.backend={backend}",
                      *(f"cluster.partitions.{label}.gpu={gpu}" for label in ("ib", "roce"))])
    folder = RunFolder.create(tmp_path, "mixed")
    notes = Notes(folder)
    assert notes.new() == []
    meeting = SimpleNamespace(start=SimpleNamespace(run=folder), layout=SimpleNamespace(rank=0))
    slurm_rank._say_no_gpus(config, read_cluster(config.cluster), Allocation({}, "ib-1", backend=library),
                            cast(Any, meeting))
    said = notes.new()
    assert bool(said) == warned and notes.new() == []
    if warned:
        assert "describes a100-80g" in said[0] and "compute on CPUs" in said[0]
