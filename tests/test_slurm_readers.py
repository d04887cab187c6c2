"""What Slurm's programs and files say, read by the code that a run uses: recorded output and other sites' forms."""

from __future__ import annotations

import pytest

from holmes_hpc.cluster import expand_hostlist
from holmes_hpc.cluster.nics import nic_of_feature
from holmes_hpc.cluster.slurm import (
    SlurmOutputError,
    read_scontrol_nodes,
    read_settings,
    read_sinfo,
    read_topology,
)
from holmes_hpc.cluster.slurm.gres import Gres, read_gres
from holmes_hpc.cluster.slurm.nodes import SlurmNode, read_scontrol_partitions, read_slurm_conf, read_state
from tests.slurm_data import text

ALL = ["ib-1", "ib-2", "roce-1", "roce-2"]
IB_FEATURES, ROCE_FEATURES = ("ib", "hdr200", "a100"), ("roce", "eth", "v100")
IB_GRES = (Gres("gpu", "a100", 2), Gres("nic", "hdr200", 1))


def by_name(nodes: tuple[SlurmNode, ...]) -> dict[str, SlurmNode]:
    return {node.name: node for node in nodes}


@pytest.mark.parametrize("nodes", [
    read_scontrol_nodes(text("scontrol-node.txt")), read_sinfo(text("scontrol-node-24.11.json")),
    read_sinfo(text("sinfo_N.txt")), read_sinfo(text("sinfo-22.05.json")), read_sinfo(text("sinfo-24.11.json")),
    read_slurm_conf(text("slurm.conf"))[0],
], ids=["scontrol", "scontrol json", "sinfo -N", "sinfo json 22.05", "sinfo json 24.11", "slurm.conf"])
def test_every_form_tells_the_same_nodes(nodes: tuple[SlurmNode, ...]) -> None:
    found = by_name(nodes)
    assert sorted(found) == ALL
    assert (found["ib-2"].features, found["ib-2"].gres) == (IB_FEATURES, IB_GRES)
    assert set(found["ib-2"].partitions) == {"ib", "mixed", "urgent"}
    assert (found["roce-1"].features, found["roce-1"].gres[0]) == (
        ROCE_FEATURES, Gres("gpu", "v100", 2))
    assert (found["roce-1"].cpus, found["roce-1"].memory_mb) == (4, 4000)


def test_the_plain_sinfo_lists_each_node_once() -> None:
    found = by_name(read_sinfo(text("sinfo.txt")))
    assert sorted(found) == ALL
    assert found["roce-2"].partitions == ("roce", "mixed", "urgent")
    assert found["roce-2"].state == ("IDLE",) and found["roce-2"].usable


def test_our_own_sinfo_format_keeps_empty_columns_apart() -> None:
    found = by_name(read_sinfo("NODELIST|PARTITION|STATE|AVAIL_FEATURES|ACTIVE_FEATURES|GRES|CPUS|MEMORY\n"
                               "n1|main*|drained*|(null)|(null)|(null)|64|31860+\nn2|long||||gpu:2|8|10\n"))
    assert found["n1"].partitions == ("main",) and found["n1"].memory_mb == 31860
    assert (found["n1"].features, found["n1"].gres, found["n1"].usable) == ((), (), False)
    assert (found["n2"].gres, found["n2"].usable) == ((Gres("gpu", None, 2),), False)


def test_sinfo_that_lists_no_nodes_is_refused() -> None:
    with pytest.raises(SlurmOutputError, match="no list of nodes"):
        read_sinfo("slurm_load_partitions: Unable to contact slurm controller (connect failure)\n")
    assert read_sinfo("PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST\n") == ()


def test_scontrol_tells_addresses_and_release() -> None:
    node = by_name(read_scontrol_nodes(text("scontrol-node.txt")))["roce-1"]
    assert (node.address, node.slurm_version, node.state) == ("10.0.0.21", "22.05.8", ("IDLE",))


OTHER_SITE = """\
NodeName=test-node-1 Arch=x86_64 CoresPerSocket=20
   CPUAlloc=34 CPUTot=80 CPULoad=19.88
   AvailableFeatures=x86_64,turing,48gb
   Gres=(null)
   OS=Linux 4.15.0-99-generic #100-Ubuntu SMP Wed Apr 22 20:32:56 UTC 2020
   RealMemory=386619 State=MIXED Weight=1 Owner=N/A
   Partitions=main,long
   Reason=disk=full on / [root@2021-08-31T17:08:38]

 NodeName=test-node-2 Arch=x86_64 CoresPerSocket=20
    CPUAlloc=28 CPUEfctv=10 CPUTot=80
    ActiveFeatures=x86_64,turing,48gb
    Gres=gpu:rtx8000:8(S:0-1)
    State=IDLE+DRAIN
NodeName=test-node-4 CPUTot=80 ActiveFeatures=(null) Gres=gpu:not-an-existing-gpu:8 State=DOWN*
NodeName=test-node-5 CPUTot=80 Gres=justarandomfield State=MIXED+CLOUD
"""


def test_records_of_other_sites() -> None:
    found = by_name(read_scontrol_nodes(OTHER_SITE))
    assert len(found) == 4
    assert found["test-node-1"].gres == () and found["test-node-1"].features == ("x86_64", "turing", "48gb")
    assert found["test-node-1"].memory_mb == 386619
    assert found["test-node-2"].gres == (Gres("gpu", "rtx8000", 8),) and not found["test-node-2"].usable
    assert found["test-node-4"].gres == (Gres("gpu", "not-an-existing-gpu", 8),) and not found["test-node-4"].usable
    assert found["test-node-4"].features == ()
    assert found["test-node-5"].gres == (Gres("justarandomfield", None, 1),) and found["test-node-5"].usable


JSON_LINES = """\
{"s": "completing", "mem": 770000, "n": "cs156", "p": "hw", "cstate": "56/8/0/64", "w": 1}
{"s": "allocated", "mem": 1000000, "n": "cs25", "p": "hw", "cstate": "64/0/0/64", "w": 1}
{"s": "allocated", "mem": 1000000, "n": "cs25", "p": "hw-l", "cstate": "64/0/0/64", "w": 1}
{"s": "allocated", "mem": 1000000, "n": "cs25", "p": "cdn", "cstate": "64/0/0/64", "w": 1}
{"s": "idle", "mem": 1000000, "n": "cs31", "p": "cdn", "cstate": "0/64/0/64", "w": 1}
"""


def test_a_node_in_several_partitions_is_one_node() -> None:
    found = by_name(read_sinfo(JSON_LINES))
    assert sorted(found) == ["cs156", "cs25", "cs31"]
    assert found["cs25"].partitions == ("hw", "hw-l", "cdn")
    assert (found["cs25"].state, found["cs25"].memory_mb) == (("ALLOCATED",), 1000000)


WITH_FEATURES = """\
PARTITION    NODES NODES(A/I/O/T) S:C:T   MEMORY  TIMELIMIT   GRES        NODELIST            AVAIL_FEATURES
roma*        61    56/0/5/61      2:64:1  512000  10-00:00:00 (null)      sdfrome[003-063]    CPU_GEN:RME,CPU_SKU:7702
ampere       23    23/0/0/23      2:64:2  1029344 10-00:00:00 gpu:a100:4  sdfampere[001-023]  CPU_GEN:RME,GPU_SKU:A100
"""


def test_columns_of_any_order_and_width() -> None:
    found = by_name(read_sinfo(WITH_FEATURES))
    assert len(found) == 61 + 23
    assert found["sdfampere023"].gres == (Gres("gpu", "a100", 4),)
    assert found["sdfampere023"].features == ("CPU_GEN:RME", "GPU_SKU:A100")
    assert found["sdfrome003"].partitions == ("roma",) and found["sdfrome003"].gres == ()


def test_the_date_above_the_long_form_is_no_row() -> None:
    found = read_sinfo("Sun Nov 29 20:51:41 2026\n"
                       "NODELIST   NODES PARTITION       STATE CPUS    S:C:T MEMORY TMP_DISK WEIGHT AVAIL_FE REASON\n"
                       "ib-1           1    mixed*     drained 4       1:4:1   4000        0     10 ib,hdr bad disk\n")
    assert [(node.name, node.state, node.cpus, node.usable) for node in found] == [("ib-1", ("DRAINED",), 4, False)]


@pytest.mark.parametrize(("said", "words"), [
    ("IDLE+DRAIN", ("IDLE", "DRAIN")), ("mix*", ("MIXED", "NOT_RESPONDING")), ("idle~", ("IDLE", "POWERED_DOWN")),
    ("drng", ("DRAINING",)), ("MIXED+CLOUD+NOT_RESPONDING", ("MIXED", "CLOUD", "NOT_RESPONDING")), ("", ()),
])
def test_node_states(said: str, words: tuple[str, ...]) -> None:
    assert read_state(said) == words


def test_a_sleeping_cloud_node_is_usable_and_a_silent_one_is_not() -> None:
    assert SlurmNode("n", state=read_state("idle~")).usable
    assert not SlurmNode("n", state=read_state("idle*")).usable


def test_partitions() -> None:
    found = {partition.name: partition for partition in read_scontrol_partitions(text("scontrol-partition.txt"))}
    assert list(found) == ["ib", "roce", "mixed", "urgent"]
    assert found["mixed"].default and not found["ib"].default
    assert list(found["mixed"].nodes) == ALL
    assert (found["urgent"].priority_tier, found["urgent"].grace_seconds) == (100, 20)
    assert found["ib"].preempt_mode == "REQUEUE"
    configured = read_slurm_conf(text("slurm.conf"))[1]
    assert [(partition.name, partition.nodes) for partition in configured] == [
        (partition.name, partition.nodes) for partition in found.values()]


@pytest.mark.parametrize(("said", "gres"), [
    ("gpu:a100:4(S:0-1)", (Gres("gpu", "a100", 4),)),
    ("gpu:a100:2(IDX:0,3),gpu:v100:1(S:1),nic:hdr200:1",
     (Gres("gpu", "a100", 2), Gres("gpu", "v100", 1), Gres("nic", "hdr200", 1))),
    ("gpu:2", (Gres("gpu", None, 2),)), ("gpu", (Gres("gpu", None, 1),)), ("(null)", ()), ("", ()), (None, ()),
    ("bandwidth:lustre:no_consume:4G", (Gres("bandwidth", "lustre", 4 << 30),)),
    ("gres:gpu:a100:2", (Gres("gpu", "a100", 2),)),
    ("gpu:tesla_p100-pcie-16gb:2", (Gres("gpu", "tesla_p100-pcie-16gb", 2),)),
])
def test_gres(said: str | None, gres: tuple[Gres, ...]) -> None:
    assert read_gres(said) == gres


@pytest.mark.parametrize("name", ["scontrol_show_topology.txt", "topology.conf"])
def test_topology(name: str) -> None:
    topology = read_topology(text(name))
    assert topology.kind == "tree"
    assert dict(topology.switch_of) == {"ib-1": "ib-sw", "ib-2": "ib-sw", "roce-1": "roce-sw", "roce-2": "roce-sw"}
    assert topology.switches[2].children == ("ib-sw", "roce-sw")
    assert topology.strangers(ALL) == {}


def test_topologies_of_other_sites() -> None:
    azure = read_topology("# Number of Nodes in sw00: 3\nSwitchName=sw00 Nodes=az-hpc-36,az-hpc-39,az-hpc-42\n"
                          "SwitchName=sw01 Nodes=az-hpc-1,az-hpc-35\nSwitchName=sw05 Switches=sw00,sw01\n")
    assert azure.switch_of["az-hpc-39"] == "sw00" and azure.switch_of["az-hpc-1"] == "sw01"

    commented = read_topology("# Warning: Block 1 has less than 20 nodes, commenting out\n"
                              "#BlockName=block1 Nodes=az-hpc-1,az-hpc-5\nBlockSizes=20\n")
    assert (commented.kind, commented.switches) == ("block", ())
    blocks = read_topology("BlockName=b1 Nodes=node[01-04]\nBlockName=b2 Nodes=node[05-08]\nBlockSizes=4\n")
    assert blocks.kind == "block" and blocks.switch_of["node06"] == "b2"
    assert read_topology("").kind == "flat"


def test_a_typing_error_in_a_topology_is_reported_and_not_mended() -> None:
    topology = read_topology("SwitchName=s0 Nodes=dgx-n[001-016],n[019-020]\n"
                             "SwitchName=s1 Nodes=dgx-n[017-018,021-036]")
    known = [f"dgx-n{number:03d}" for number in range(1, 81)]
    assert topology.strangers(known) == {"s0": ("n019", "n020")}
    assert "dgx-n019" not in topology.switch_of


def test_settings() -> None:
    settings = read_settings(text("scontrol-config.txt"))
    assert settings.cluster == "hx" and settings.max_array_size == 1001 and settings.kill_wait_seconds == 5
    assert settings.accounting and settings.requeues and settings.preempted_jobs_are_requeued
    bare = read_settings("")
    assert (bare.max_array_size, bare.accounting, bare.preempted_jobs_are_requeued) == (1001, False, False)


def test_the_hosts_of_a_job_come_in_slurms_order() -> None:
    assert expand_hostlist("ib-[1-2],roce-[1-2]") == ALL


@pytest.mark.parametrize(("feature", "family", "kind"), [
    ("IB:EDR", "ib", "edr100"), ("IB:HDR", "ib", "hdr200"), ("ib_hdr", "ib", "hdr200"), ("ib_qdr", "ib", "qdr40"),
    ("IB", "ib", None), ("OPA", "opa", None), ("efa", "efa", None), ("efa-c5n", "efa", None),
])
def test_what_centres_call_their_networks(feature: str, family: str, kind: str | None) -> None:
    match = nic_of_feature(feature)
    assert match is not None and (match.family, match.kind) == (family, kind)


@pytest.mark.parametrize("feature", [
    "CLASS:SH3_CBASE", "CPU_GEN:RME", "CPU_SKU:7502P", "CPU_FRQ:2.50GHz", "GPU_GEN:VLT", "GPU_SKU:A100_SXM4",
    "GPU_SKU:RTX_3090", "GPU_MEM:40GB", "GPU_CC:8.0", "NO_GPU", "haswell", "volta", "hopper", "standard", "512GiB",
    "nvidia-gpu", "nvidia-t4", "CPU-N", "static", "c5n.18xlarge", "gpu", "mc", "group0", "row0", "x86_64", "turing",
    "BigMem",
])
def test_what_centres_call_other_things_is_no_network(feature: str) -> None:
    assert nic_of_feature(feature) is None
