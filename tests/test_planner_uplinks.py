"""What lies between fabrics: a link's rate for each node, the uplink of nodes with Ethernet NICs, latencies."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from holmes_hpc.cluster import ClusterDescription, LinkRate, Machine, read_cluster
from holmes_hpc.cluster.measured import MeasuredLink, to_json
from holmes_hpc.config.cluster_schema import Cluster
from holmes_hpc.config.compose import compose
from holmes_hpc.planner import plan
from holmes_hpc.planner.cost.network import NetworkCost
from holmes_hpc.planner.simulation.predict import step_collectives
from holmes_hpc.planner.simulation.traffic import resource_words, used_networks
from holmes_hpc.planner.task import task_of
from holmes_hpc.values import Group, Plan


def two_fabrics(ethernet: float | str, nics: tuple[str, str] = ("hdr200", "roce200"), *links: str) -> Plan:
    """Return the plan of GPT-2 small in two stages, one on each of two fabrics of two nodes of 4 GPUs."""
    config = compose(["+cluster=mixed", "parallel=holmes", "parallel.pipeline=2", "parallel.schedule=1f1b",
                      "model=gpt2_small", "train.precision=bfloat16", "train.global_batch_size=64",
                      *(f"cluster.partitions.{label}.{key}={value}"
                        for label, nic in zip(("ib", "roce"), nics, strict=True)
                        for key, value in (("nic", nic), ("ethernet_gbps", ethernet), ("gpus_per_node", 4))),
                      *(f"cluster.links=[{{between: [ib, roce], {link}}}]" for link in links)])
    return plan(config, mode="slurm")


def test_a_links_rate_is_that_of_each_node() -> None:
    def seconds(ethernet: float, *links: str) -> float:
        return two_fabrics(ethernet, ("hdr200", "roce200"), *links).predicted.step_seconds

    slow, fast = seconds(1), seconds(400)
    assert slow > 5 * fast
    assert seconds(1, "bandwidth_gbps: 400") == pytest.approx(fast, rel=1e-3)
    assert seconds(25, "bandwidth_gbps: 1") == pytest.approx(slow, rel=1e-3)
    assert seconds(400, "bandwidth_gbps: 400") == fast


def test_an_uplink_is_no_faster_for_ethernet_nics() -> None:
    rdma = two_fabrics(1).predicted
    ethernet = two_fabrics(1, ("eth100", "eth100")).predicted
    assert ethernet.step_seconds == pytest.approx(rdma.step_seconds, rel=0.05)
    usual = two_fabrics("null", ("eth100", "eth100")).predicted.step_seconds
    assert two_fabrics(100, ("eth100", "eth100")).predicted.step_seconds == usual < 0.2 * ethernet.step_seconds


def read(links: str = "", nic: str = "hdr200") -> ClusterDescription:
    text = f"""
name: three
partitions:
  a: {{nodes: 2, gpus_per_node: 4, nic: {nic}, ethernet_gbps: 25}}
  b: {{nodes: 2, gpus_per_node: 4, nic: {nic}, ethernet_gbps: 25}}
  c: {{nodes: 2, gpus_per_node: 4, nic: {nic}, ethernet_gbps: 25}}
links: [{links}]
"""
    return read_cluster(OmegaConf.merge(OmegaConf.structured(Cluster), OmegaConf.create(text)))


def busy(machine: Machine, sender: int, receiver: int) -> dict[tuple[str, str], float]:
    """Return how many gigabits a second what a message occupies could carry."""
    taken = NetworkCost(machine).message("ethernet", sender, receiver, 1e9).busy
    least = min(taken.values())
    return {key: round(seconds / least, 3) for key, seconds in taken.items()}


def test_a_slow_link_leaves_a_nodes_ethernet_to_others() -> None:
    machine = Machine.described(read("{between: [a, b], bandwidth_gbps: 5}"))
    assert busy(machine, 0, 8) == {("a/0", "out ethernet"): 1, ("a/0", "out ethernet>b"): 5, ("b/0", "in ethernet"): 1,
                                   ("b/0", "in ethernet>a"): 5}
    assert busy(machine, 0, 16) == {("a/0", "out ethernet"): 1, ("c/0", "in ethernet"): 1}
    assert machine.node_bandwidth_gbps(machine.cluster.nodes[0], "ethernet") == 25


def test_a_fast_link_makes_a_nodes_ethernet_to_others_no_faster() -> None:
    machine = Machine.described(read("{between: [a, b], bandwidth_gbps: 100}"))
    assert busy(machine, 0, 8) == {("a/0", "out ethernet"): 1, ("b/0", "in ethernet"): 1}
    assert busy(machine, 0, 16) == {("a/0", "out ethernet"): 1, ("a/0", "out ethernet>"): 4, ("c/0", "in ethernet"): 4}
    assert busy(machine, 0, 4) == {("a/0", "out ethernet"): 1, ("a/0", "out ethernet>"): 4, ("a/1", "in ethernet"): 1,
                                   ("a/1", "in ethernet>"): 4}


def test_an_uplink_is_beside_the_ethernet_nics() -> None:
    machine = Machine.described(read(nic="eth100"))
    a, other_a, b, *_ = machine.cluster.nodes
    assert busy(machine, 0, 8) == {("a/0", "out ethernet"): 1, ("a/0", "out ethernet>"): 4, ("b/0", "in ethernet"): 1,
                                   ("b/0", "in ethernet>"): 4}
    assert busy(machine, 0, 4) == {("a/0", "out ethernet"): 1, ("a/1", "in ethernet"): 1}
    assert machine.link("ethernet", a, other_a) == LinkRate(100, 30)
    assert machine.way(a, b) == ("", 25)
    assert machine.node_bandwidth_gbps(a, "ethernet") == 100


def test_a_measured_link_goes_before_a_links_rate(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    path.write_text(json.dumps(to_json([MeasuredLink("ethernet", ("roce", "ib"), ("roce-1", "ib-1"), 8.0, 60.0)])))
    config = compose(["+cluster=mixed", f"cluster.measured={path}",
                      "cluster.links=[{between: [ib, roce], bandwidth_gbps: 100}]"])
    machine = Machine.described(read_cluster(config.cluster))
    ib, _, roce, _ = machine.cluster.nodes
    assert machine.way(ib, roce) == machine.way(roce, ib) == ("", 8)
    assert machine.node_bandwidth_gbps(ib, "ethernet") == 8


def test_bytes_are_counted_once_and_words_say_which_way() -> None:
    plain, linked = two_fabrics(25).predicted, two_fabrics(25, ("hdr200", "roce200"), "bandwidth_gbps: 1").predicted
    sent = [{each.network: each.bytes for each in made.bytes_by_network}["ethernet"] for made in (plain, linked)]
    assert sent[0] == sent[1] > 0
    cluster = read()
    assert resource_words(("a/0", "out ethernet>b"), cluster) == "Ethernet of a/0 to b, sending"
    assert resource_words(("a/0", "in ethernet>"), cluster) == "Ethernet of a/0 from other fabrics, receiving"
    assert resource_words(("a/0", "in ethernet"), cluster) == "Ethernet of a/0, receiving"
    assert used_networks({("a/0", "out ethernet>b"): 1.0, ("a/0", "out ethernet"): 1.0}) == {"ethernet"}


@pytest.mark.parametrize("order", ["grouped", "alternate"])
def test_a_steps_small_collectives_take_the_longest_link_in_any_order(order: str) -> None:
    config = compose(["+cluster=mixed", "cluster.partitions.ib.nodes=3", "cluster.partitions.roce.nodes=1",
                      f"cluster.order={order}", "cluster.links=[{between: [ib, roce], latency_us: 5000}]"])
    task = task_of(config, "slurm")
    world = Group("world", tuple(range(8)), "ethernet")
    assert step_collectives(task, world) == pytest.approx(3 * 2 * 3 * 5000e-6)


def test_the_longest_of_several_links_counts() -> None:
    machine = Machine.described(read("{between: [b, c], latency_us: 900}, {between: [a, c], latency_us: 40}"))
    task = dataclasses.replace(task_of(compose(["+cluster=mixed"]), "slurm"), cluster=machine.cluster, machine=machine)
    seconds = [step_collectives(task, Group("world", ranks, "ethernet")) for ranks in ((0, 8), (0, 16), (0, 8, 16))]
    assert seconds == pytest.approx([6 * 30e-6, 6 * 40e-6, 12 * 900e-6])
    assert step_collectives(task, Group("world", (0, 1, 4), "ib")) == pytest.approx(12 * 1.1e-6)
    assert step_collectives(task, Group("world", (0, 1), "local")) == pytest.approx(6 * 8e-6)
