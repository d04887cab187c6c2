"""The emulated network: its layout, its rates, and what each interface counts."""

import socket
import time
from pathlib import Path

import pytest

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.cluster.cluster import Node
from holmes_hpc.emulation.counters import sent_bytes
from holmes_hpc.emulation.namespaces import namespaces_available
from holmes_hpc.emulation.network import burst_bytes, emulated_network
from holmes_hpc.emulation.world import start_world

RATES = {"ib": 1.0, "roce": 0.8, "ethernet": 0.1}


def _cluster(labels, rates=RATES, **fields):
    """Nodes by (label, NIC kind, fabric, count)."""
    nodes = tuple(Node(f"{label}/{index}", label, index, fabric, "a100-80g", 2, nic, 1, 25.0)
                  for label, nic, fabric, count in labels for index in range(count))
    return ClusterDescription("test", nodes, rates=rates, **fields)


MIXED = _cluster([("ib", "hdr200", "ib", 3), ("roce", "roce200", "roce", 2)])


def test_every_node_has_ethernet_and_its_fabric():
    network = emulated_network(MIXED)
    assert [node.name for node in network.nodes] == ["ib-0", "ib-1", "ib-2", "roce-0", "roce-1"]
    assert [node.interface_names for node in network.nodes] == [
        {"local": "lo", "ethernet": "eth0", "ib": "ib0"}] * 3 + [
        {"local": "lo", "ethernet": "eth0", "roce": "roce0"}] * 2
    assert [node.ethernet_address for node in network.nodes] == [f"10.0.0.{host}" for host in (1, 2, 3, 4, 5)]
    assert [(i.address, i.bandwidth_gbps, i.mtu) for i in network.node("roce/1").interfaces] == [
        ("10.0.0.5", 0.1, 1500), ("10.2.0.5", 0.8, 9000)]


def test_two_fabrics_of_one_family_share_no_bridge_and_plain_ethernet_needs_none():
    network = emulated_network(_cluster([("a", "hdr200", "a", 1), ("b", "ndr400", "b", 1),
                                         ("c", "eth25", "c", 1)]))
    bridges = [[interface.bridge for interface in node.interfaces] for node in network.nodes]
    assert bridges[0][0] == bridges[1][0] == bridges[2][0]
    assert bridges[0][1] != bridges[1][1]
    assert [interface.name for interface in network.nodes[2].interfaces] == ["eth0"]


def test_rates_follow_the_description_when_the_file_names_none():
    small = emulated_network(_cluster([("ib", "hdr200", "ib", 1)], rates={}))
    assert [i.bandwidth_gbps for i in small.nodes[0].interfaces] == [0.2, 2.0]
    tunnel = emulated_network(_cluster([("ib", "hdr200", "ib", 1)], rates={}, scale=1000))
    assert [i.bandwidth_gbps for i in tunnel.nodes[0].interfaces] == [0.025, 0.2]


def test_names_stay_distinct_when_labels_are_strange():
    nodes = emulated_network(_cluster([("a b", "hdr200", "x", 1), ("a*b", "hdr200", "x", 1)])).nodes
    assert len({node.name for node in nodes}) == 2
    assert all("/" not in node.name and " " not in node.name for node in nodes)


def test_a_bucket_holds_a_few_milliseconds_and_at_least_a_jumbo_frame():
    assert burst_bytes(2.0) == 500_000
    assert burst_bytes(0.2) == 72_000
    assert burst_bytes(0.006) == 12_000


def _receive(address, senders, count):
    """Take `count` bytes of each sender, whose connections are closed once all have come."""
    with socket.create_server((address, 5000)) as server:
        connections = [server.accept()[0] for _ in range(senders)]
        for connection in connections:
            left = count
            while left:
                left -= len(connection.recv(min(left, 1 << 18)))


def _send(address, count):
    """Send and return the seconds until the receiver has it all: never less than the link takes, on any machine."""
    deadline = time.monotonic() + 20
    while True:
        try:
            connection = socket.create_connection((address, 5000), timeout=20)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    began = time.monotonic()
    connection.sendall(bytes(count))
    connection.recv(1)
    return time.monotonic() - began


def _run_on_nodes(tmp_path, functions):
    """Run {node name: function(send)} on MIXED; return their events and exit statuses."""
    available, reason = namespaces_available()
    if not available:
        pytest.skip(reason)

    def body(context):
        for rank, (node, function) in enumerate(functions.items()):
            def run(function=function, node=node):
                context.send({"event": "measured", "node": node} | function())
                return 0
            context.fork_rank(rank, node, run, tmp_path / f"{node}.log")
        return max(context.wait(40)[1] for _ in functions)

    world = start_world(emulated_network(MIXED), body)
    status = world.wait(60)
    world.kill()
    logs = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    events = list(world.events())
    assert status == 0, (events, logs)
    return {event["node"]: event for event in events}


def _received_bytes(interface):
    lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    return next(int(line.partition(":")[2].split()[0]) for line in lines if line.strip().startswith(f"{interface}:"))


@pytest.mark.emulated
def test_a_link_holds_its_rate_and_only_its_interface_counts(tmp_path):
    """The same bytes over a fabric and over Ethernet, which is ten times slower, side by side."""
    count = int(0.1e9 / 8 * 0.4)  # 0.4 s over Ethernet

    def send(address):
        before = sent_bytes()
        seconds = _send(address, count)
        return {"seconds": seconds, "sent": {name: total - before[name] for name, total in sent_bytes().items()}}

    def receive(address, interface):
        _receive(address, 1, count)
        return {"received": _received_bytes(interface)}

    measured = _run_on_nodes(tmp_path, {
        "ib-0": lambda: receive("10.1.0.1", "ib0"), "ib-1": lambda: send("10.1.0.1"),
        "roce-0": lambda: receive("10.0.0.4", "eth0"), "roce-1": lambda: send("10.0.0.4")})
    fabric, ethernet = measured["ib-1"], measured["roce-1"]
    for sender, used, other in ((fabric, "ib0", "eth0"), (ethernet, "eth0", "roce0")):
        assert count < sender["sent"][used] < 1.06 * count
        assert sender["sent"][other] < 2000
    assert measured["ib-0"]["received"] >= count and measured["roce-0"]["received"] >= count
    assert ethernet["seconds"] > 0.36
    assert fabric["seconds"] < ethernet["seconds"] / 1.5


@pytest.mark.emulated
def test_two_senders_share_the_receivers_link(tmp_path):
    """Two senders of a node take as long as one, side by side with them, that sends as much as both to another."""
    count = int(0.1e9 / 8 * 0.2)

    def receive(address, senders, each):
        _receive(address, senders, each)
        return {}

    measured = _run_on_nodes(tmp_path, {
        "ib-0": lambda: receive("10.0.0.1", 2, count),
        "ib-1": lambda: {"seconds": _send("10.0.0.1", count)}, "ib-2": lambda: {"seconds": _send("10.0.0.1", count)},
        "roce-0": lambda: receive("10.0.0.4", 1, 2 * count),
        "roce-1": lambda: {"seconds": _send("10.0.0.4", 2 * count)}})
    shared, alone = max(measured[name]["seconds"] for name in ("ib-1", "ib-2")), measured["roce-1"]["seconds"]
    assert min(shared, alone) > 0.34
    assert 0.5 < shared / alone < 2


@pytest.mark.emulated
def test_a_fabric_does_not_reach_another(tmp_path):
    def dial():
        try:
            socket.create_connection(("10.2.0.4", 5000), timeout=1)
        except OSError as error:
            return {"refused": error.strerror}
        return {"refused": None}

    assert _run_on_nodes(tmp_path, {"ib-0": dial})["ib-0"]["refused"] == "Network is unreachable"
