"""Links that are disturbed on purpose: what the kernel does to real TCP connections, step by step."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.cluster.cluster import Node
from holmes_hpc.emulation import packet_filters
from holmes_hpc.emulation.disturber import Disturber
from holmes_hpc.emulation.namespaces import namespaces_available
from holmes_hpc.emulation.network import emulated_network
from holmes_hpc.emulation.world import start_world
from holmes_hpc.errors import RunFailedError
from holmes_hpc.values.disturbances import DELAY, LOSS, RATE, TRAFFIC, Disturbance

GBPS = 0.1
SENT_BYTES = 400_000
WIRE_SECONDS = 8 * SENT_BYTES / (GBPS * 1e9)
BOTH_WAYS = (("ib/0", "roce/0"), ("roce/0", "ib/0"))
UNDISTURBED, SLOW, LATE, LOSSY, CROWDED, AFTERWARDS = 1, 2, 3, 4, 5, 6


def _disturbance(kind, amount, step, **where):
    return Disturbance(kind, amount, step, step, kind, "ethernet", **where)


DISTURBANCES = (
    _disturbance(RATE, 0.2, SLOW, nodes=frozenset({"roce/0"})),
    _disturbance(DELAY, 30.0, LATE, pairs=BOTH_WAYS[:1], jitter_ms=5.0),
    _disturbance(LOSS, 0.1, LOSSY, pairs=BOTH_WAYS[:1]),
    _disturbance(TRAFFIC, 0.8, CROWDED, pairs=BOTH_WAYS),
)
NODES = tuple(Node(f"{label}/0", label, 0, label, "a100-80g", 1, nic, 1, 25.0)
              for label, nic in (("ib", "hdr200"), ("roce", "roce200"), ("other", "hdr200")))
CLUSTER = ClusterDescription("test", NODES, rates={"ib": 1.0, "roce": 0.8, "ethernet": GBPS}, disturbances=DISTURBANCES)


def _echo(address, wait_for_links):
    """Answer each message with one byte, through all steps."""
    with socket.create_server((address, 5000)) as server:
        connection = server.accept()[0]
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for step in range(UNDISTURBED, AFTERWARDS + 1):
            wait_for_links(step, 30)
            for count in (1, SENT_BYTES, 1, 1, 1):
                while count:
                    count -= len(connection.recv(min(count, 1 << 18)))
                connection.sendall(b"!")
    return {}


def _ask(address, wait_for_links):
    """Return by step the seconds until a large message is there, and the fewest until a small one was answered."""
    deadline = time.monotonic() + 20
    while True:
        try:
            connection = socket.create_connection((address, 5000), timeout=30)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found = {}
    for step in range(UNDISTURBED, AFTERWARDS + 1):
        before = _sent_again()
        wait_for_links(step, 30)
        seconds = []
        for count in (1, SENT_BYTES, 1, 1, 1):
            began = time.monotonic()
            connection.sendall(bytes(count))
            connection.recv(1)
            seconds.append(time.monotonic() - began)
        found[str(step)] = [seconds.pop(1), min(seconds), _sent_again() - before]
    return found


def _sent_again():
    """Return how many segments TCP has sent more than once in this network namespace."""
    names, values = (line.split() for line in Path("/proc/thread-self/net/snmp").read_text().splitlines()
                     if line.startswith("Tcp:"))
    return int(dict(zip(names, values, strict=True))["RetransSegs"])


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """By step: seconds of a large message, of a small one and its answer, and segments that were sent again."""
    available, reason = namespaces_available()
    if not available:
        pytest.skip(reason)
    folder, network = tmp_path_factory.mktemp("disturbed"), emulated_network(CLUSTER)
    address = network.node("roce/0").ethernet_address

    def body(context):
        disturber = Disturber(network, 2)
        helper = disturber.start(context, context.node_networks)
        for rank, (node, function) in enumerate((("roce-0", _echo), ("ib-0", _ask))):
            def run(function=function, node=node):
                found = function(address, disturber.wait_for_links)
                context.send({"event": "measured", "node": node, "found": found})
                return 0
            context.fork_rank(rank, node, run, folder / f"{node}.log")
        ended = [context.wait(60) for _ in range(2)]
        return 0 if all(end is not None and end[0] != helper and end[1] == 0 for end in ended) else 1

    world = start_world(network, body)
    status = world.wait(90)
    world.kill()
    events = list(world.events())
    assert status == 0, (events, [path.read_text() for path in folder.glob("*.log")])
    found = next(event["found"] for event in events if event.get("found"))
    return {int(step): values for step, values in found.items()}


def test_a_rate_holds_from_its_first_step_on(measured):
    assert measured[SLOW][0] > 4 * WIRE_SECONDS
    assert measured[UNDISTURBED][0] > 0.7 * WIRE_SECONDS  # the bucket lets some of it pass at once


def test_packets_are_late_one_way_by_the_delay_and_part_of_the_jitter(measured):
    assert measured[LATE][1] > 0.030


def test_packets_are_lost_for_good_so_that_tcp_sends_them_again(measured):
    segments = SENT_BYTES / 1448
    assert measured[LOSSY][2] > 0.03 * segments
    assert measured[UNDISTURBED][2] < 0.03 * segments


def test_other_traffic_leaves_the_rest_of_the_rate(measured):
    assert measured[CROWDED][0] > 2 * WIRE_SECONDS


def test_nothing_acts_any_more_afterwards(measured):
    assert measured[AFTERWARDS][1] < 0.030
    assert measured[AFTERWARDS][2] < 0.03 * SENT_BYTES / 1448


def test_a_program_says_where_each_jump_leads():
    to = packet_filters.taking_to(["10.0.0.1", "10.0.0.2"])
    assert packet_filters.for_tc(to) == ("7,40 0 0 12,21 0 3 2048,32 0 0 30,21 2 0 167772161,21 1 0 167772162,6 0 0 0,"
                                         "6 0 0 4294967295")
    losing = packet_filters.losing({"10.0.0.1": 0.5})
    assert len(packet_filters.for_socket(losing)) == 8 * len(losing)
    assert losing[6] == (0x35, 1, 0, 2**31)


def test_a_helper_that_fails_says_why():
    def fail():
        raise OSError("tc: no such link")

    def body(context):
        context.fork_helper("holmes-disturb", fail)
        ended = context.wait(20)
        return 3 if ended is not None and ended[1] == 1 else 4

    world = start_world(None, body)
    assert world.wait(30) == 3
    assert [event["message"] for event in world.events()] == ["holmes-disturb: OSError: tc: no such link"]


def test_a_rank_waits_for_links_no_longer_than_it_may():
    disturber = Disturber(emulated_network(CLUSTER), 2)
    with pytest.raises(RunFailedError, match="step 3: the emulated links were not changed in 0 s"):
        disturber.wait_for_links(3, 0.01)
