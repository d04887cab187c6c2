"""NIC and fabric of each node: never one partition, one fabric."""

from __future__ import annotations

import pytest

from holmes_hpc.cluster.slurm import SlurmNode, annotate, read_scontrol_nodes, read_topology
from holmes_hpc.cluster.slurm.gres import read_gres
from holmes_hpc.cluster.slurm.nodes import read_slurm_conf
from holmes_hpc.errors import ConfigurationError
from tests.slurm_data import text

CENTRE = """\
NodeName=DEFAULT RealMemory=187000 Sockets=2 CoresPerSocket=16 Weight=60
NodeName=n[001-087] Feature=CPU-Gold-6130,OPA
NodeName=gn[001-002] Gres=gpu:tesla_p100-pcie-16gb:2 Feature=CPU-Gold-6130,OPA,P100 Weight=190
NodeName=DEFAULT CPUs=40 CoresPerSocket=20
NodeName=g[001-008] Gres=gpu:tesla_v100-pcie-32gb:2 Feature=CPU-Gold-6230,IB,V100 Weight=190
NodeName=m[001-096] Feature=CPU-Gold-6230,IB Weight=70
PartitionName=DEFAULT State=UP MaxTime=72:00:00
PartitionName=general-compute Nodes=n[001-087],m[001-096],g[001-008] Default=YES Priority=100
PartitionName=debug Nodes=gn[001-002] MaxTime=01:00:00
"""
CENTRE_TOPOLOGY = """\
SwitchName=IBN Nodes=n[001-100],gn[001-002]
SwitchName=IBM Nodes=m[001-100]
SwitchName=IBG Nodes=g[001-008]
SwitchName=TOP Switches=IBN,IBM,IBG
"""


def nodes(**features: str) -> list[SlurmNode]:
    return [SlurmNode(name.replace("_", "-"), features=tuple(said.split(",") if said else ()), partitions=("all",))
            for name, said in features.items()]


def test_the_recorded_cluster_has_two_fabrics_in_its_mixed_partition() -> None:
    found = annotate(read_scontrol_nodes(text("scontrol-node.txt")), read_topology(text("topology.conf")))
    ib, roce = found["ib-2"], found["roce-1"]
    assert (ib.family, ib.nic, ib.fabric, ib.switch, ib.source) == ("ib", "hdr200", "ib", "ib-sw", "feature hdr200")
    assert (roce.family, roce.nic, roce.fabric, roce.switch) == ("roce", None, "roce", "roce-sw")
    assert not any(annotation.contradiction for annotation in found.values())
    assert set(annotate(read_scontrol_nodes(text("scontrol-node.txt"))).values()) != set(found.values())


def test_omni_path_and_infiniband_in_one_partition_are_told_apart() -> None:
    configured, partitions = read_slurm_conf(CENTRE)
    by_name = {node.name: node for node in configured}
    assert by_name["g008"].memory_mb == 187000 and by_name["g008"].gres[0].type == "tesla_v100-pcie-32gb"
    assert by_name["m001"].partitions == by_name["n001"].partitions == ("general-compute",)
    assert [(part.name, part.max_time) for part in partitions] == [
        ("general-compute", "72:00:00"), ("debug", "01:00:00")]

    topology = read_topology(CENTRE_TOPOLOGY)
    found = annotate(configured, topology)
    assert (found["n087"].family, found["n087"].fabric, found["n087"].source) == ("opa", "opa", "feature OPA")
    assert found["gn001"].fabric == "opa"
    # The only switch above both InfiniBand groups joins Omni-Path too, so it is no InfiniBand switch.
    assert (found["m001"].fabric, found["g001"].fabric) == ("ib-IBM", "ib-IBG")
    assert annotate(configured)["m001"].fabric == annotate(configured)["g001"].fabric == "ib"
    assert list(topology.strangers(by_name)) == ["IBN", "IBM"]


def test_leaf_switches_under_one_spine_are_one_fabric() -> None:
    found = annotate(nodes(a1="ib", a2="ib", b1="ib", login=""), read_topology(
        "SwitchName=leaf1 Nodes=a[1-2]\nSwitchName=leaf2 Nodes=b1,login\nSwitchName=spine Switches=leaf[1-2]"))
    assert {found[name].fabric for name in ("a1", "a2", "b1")} == {"ib"}
    assert (found["login"].family, found["login"].fabric, found["login"].source) == (None, None, "nothing")


def test_two_fabrics_of_one_family_are_told_apart_by_switches() -> None:
    found = annotate(nodes(a1="ib", a2="ib", b1="ib", r1="roce"), read_topology(
        "SwitchName=left Nodes=a[1-2]\nSwitchName=right Nodes=b1\nSwitchName=rr Nodes=r1\n"
        "SwitchName=core Switches=left,right,rr"))
    assert [found[name].fabric for name in ("a1", "a2", "b1", "r1")] == ["ib-left", "ib-left", "ib-right", "roce"]


def test_networks_of_different_generations_do_not_mix() -> None:
    found = annotate(nodes(k1="haswell,ib_qdr", k2="skylake,ib_hdr", k3="ampere,IB:HDR"))
    assert [found[name].fabric for name in ("k1", "k2", "k3")] == ["ib-qdr40", "ib-hdr200", "ib-hdr200"]


def test_a_sites_own_features_go_first_and_case_does_not_count() -> None:
    found = annotate(nodes(x1="RailA", x2="ROCE"), site_features={"raila": "roce200"})
    assert (found["x1"].family, found["x1"].nic, found["x1"].source) == ("roce", "roce200", "feature RailA")
    assert found["x2"].family == "roce"
    with pytest.raises(ConfigurationError, match="cluster.features.raila"):
        annotate(nodes(x1="RailA"), site_features={"raila": "infinband"})


def test_resources_switches_and_partitions_tell_where_features_do_not() -> None:
    plain = [SlurmNode("g1", gres=read_gres("gpu:4,nic:hdr200:1")), SlurmNode("s1"),
             SlurmNode("p1", partitions=("roce", "all")), SlurmNode("p2", partitions=("ib", "roce")),
             SlurmNode("e1", features=("25gbe",))]
    found = annotate(plain, read_topology("SwitchName=ib-sw Nodes=s1"))
    assert {name: (note.family, note.nic, note.source) for name, note in found.items()} == {
        "g1": ("ib", "hdr200", "gres nic:hdr200"), "s1": ("ib", None, "switch ib-sw"),
        "p1": ("roce", None, "partition roce"), "p2": (None, None, "nothing"),
        "e1": ("ethernet", "eth25", "feature 25gbe")}


def test_a_resource_makes_a_feature_exact_and_contradictions_are_named() -> None:
    exact, wrong, both = annotate([
        SlurmNode("exact", features=("ib",), gres=read_gres("nic:hdr200:1")),
        SlurmNode("wrong", features=("roce",), gres=read_gres("nic:hdr200:1")),
        SlurmNode("both", features=("ib", "roce"))]).values()
    assert (exact.nic, exact.contradiction) == ("hdr200", None)
    assert wrong.family == "roce" and wrong.contradiction == "its features say roce, its resource nic:hdr200 ib"
    assert both.contradiction == "its features name ib and roce NICs at once"
