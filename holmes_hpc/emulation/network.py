"""The emulated network: nodes with one Ethernet and one fabric interface, bridges, and shaped links.

Each interface is one end of a veth pair whose other end hangs on a bridge, one bridge for Ethernet and one
for each fabric. A token bucket (`tc tbf`) on both ends holds the rate: the node's end for what it sends, the
bridge's end for what it receives.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holmes_hpc.cluster.nics import DEFAULT_INTERFACES, ETHERNET, NICS
from holmes_hpc.emulation import system_calls
from holmes_hpc.emulation.counters import HEADERS_BYTES
from holmes_hpc.emulation.namespaces import run_program
from holmes_hpc.errors import RunFailedError
from holmes_hpc.values.disturbances import ON_LINKS, Disturbance

if TYPE_CHECKING:
    from holmes_hpc.cluster.cluster import ClusterDescription, Node
    from holmes_hpc.values.timed import TimedPrices

ETHERNET_MTU = 1500
FABRIC_MTU = 9000

_ETHERNET_BRIDGE = "bridge-eth"

_FRAME_BYTES = 14
"""Of Ethernet, around a packet of the link's size."""
_FAIR_TCP = {"tcp_limit_output_bytes": 4096, "tcp_congestion_control": "reno", "tcp_slow_start_after_idle": 0}
"""Nothing is lost here, so that reno sends as fast as the queue empties; bbr, which may be the system's, would try out
rates of its own."""
_FAIR_BURST_SECONDS = 0.0005


@dataclass(frozen=True)
class EmulatedInterface:
    """One network interface of a node."""

    name: str
    family: str
    """the NIC's family, such as "ib" or "ethernet", as in a plan's groups"""
    address: str
    bandwidth_gbps: float
    bridge: str
    mtu: int
    fair: bool = False
    """whether flows share it packet by packet, as in a wind tunnel"""


@dataclass(frozen=True)
class EmulatedNode:
    """One node: `slot` is "ib/0" and `name` "ib-0"."""

    slot: str
    name: str
    interfaces: tuple[EmulatedInterface, ...]

    @property
    def ethernet_address(self) -> str:
        """The IPv4 address of eth0, which every other node reaches."""
        return next(interface.address for interface in self.interfaces if interface.family == ETHERNET)

    @property
    def interface_names(self) -> dict[str, str]:
        """The interface of each network family: {"local": "lo", "ethernet": "eth0", "ib": "ib0"}."""
        return {"local": "lo"} | {interface.family: interface.name for interface in self.interfaces}


@dataclass(frozen=True)
class EmulatedNetwork:
    """All nodes of an emulated cluster, in rank order."""

    nodes: tuple[EmulatedNode, ...]
    disturbances: tuple[Disturbance, ...] = ()
    """what is done to its links, and when; none of a node that is not there"""

    def node(self, slot_or_name: str) -> EmulatedNode:
        """Return the node with this slot or name; raises KeyError where there is none."""
        for node in self.nodes:
            if slot_or_name in (node.slot, node.name):
                return node
        raise KeyError(slot_or_name)


def emulated_network(cluster: ClusterDescription, timed: TimedPrices | None = None) -> EmulatedNetwork:
    """Lay out the emulated network of a cluster.

    Rates come from `cluster.rates` by family (10^9 bit/s). A family that has none gets the described rate
    divided by `cluster.scale`, and without a scale one that a small machine can hold. In a wind tunnel (`timed`) links
    carry, behind TCP's headers, what the cost model says of the NICs, divided by scale and dilation.
    """
    bridges = {fabric: f"bridge-f{index}" for index, fabric in enumerate(_fabrics(cluster))}
    names = _unique_names([node.slot for node in cluster.nodes])
    nodes = []
    for index, (node, name) in enumerate(zip(cluster.nodes, names, strict=True)):
        interfaces = [EmulatedInterface(DEFAULT_INTERFACES[ETHERNET], ETHERNET, _address(0, index),
                                        _rate(cluster, timed, node, ETHERNET), _ETHERNET_BRIDGE, ETHERNET_MTU,
                                        fair=timed is not None)]
        if node.fabric in bridges:
            subnet = 1 + list(bridges).index(node.fabric)
            interfaces.append(EmulatedInterface(
                DEFAULT_INTERFACES[node.network], node.network, _address(subnet, index),
                _rate(cluster, timed, node, node.network), bridges[node.fabric], FABRIC_MTU,
                fair=timed is not None))
        nodes.append(EmulatedNode(node.slot, name, tuple(interfaces)))
    slots = {node.slot for node in nodes}
    return EmulatedNetwork(tuple(nodes), tuple(_among(slots, each) for each in cluster.disturbances
                                               if each.kind in ON_LINKS and each.touched & slots))


def _among(slots: set[str], each: Disturbance) -> Disturbance:
    """Return a disturbance of some nodes' links: a plan may leave others out."""
    return dataclasses.replace(each, nodes=each.nodes & slots,
                               pairs=tuple(pair for pair in each.pairs if set(pair) <= slots))


def _fabrics(cluster: ClusterDescription) -> list[str]:
    """The fabrics that need a bridge of their own; plain Ethernet nodes share the Ethernet bridge."""
    return list(dict.fromkeys(node.fabric for node in cluster.nodes if node.network != ETHERNET))


def _unique_names(slots: list[str]) -> list[str]:
    names = [re.sub(r"[^A-Za-z0-9_.-]", "-", slot) for slot in slots]
    if len(set(names)) < len(names):
        names = [f"{name}.{index}" for index, name in enumerate(names)]
    return names


def _address(subnet: int, index: int) -> str:
    return f"10.{subnet}.{(index + 1) // 256}.{(index + 1) % 256}"


def contents_share(mtu: int) -> float:
    """Return which share of what a link carries are contents, and not headers of Ethernet, IPv4 and TCP."""
    return (mtu + _FRAME_BYTES - HEADERS_BYTES) / (mtu + _FRAME_BYTES)


def _rate(cluster: ClusterDescription, timed: TimedPrices | None, node: Node, family: str) -> float:
    if timed is not None:
        mtu = ETHERNET_MTU if family == ETHERNET else FABRIC_MTU
        return timed.goodput_gbps(node.slot, family) / contents_share(mtu)
    if family in cluster.rates or cluster.scale <= 1:
        return cluster.emulated_gbps(node, family)
    described_gbps = node.ethernet_gbps if family == ETHERNET else NICS[node.nic].bandwidth_gbps * node.nics
    return described_gbps / cluster.scale


def create(network: EmulatedNetwork) -> dict[str, int]:
    """Build the network around the caller's network namespace, which becomes the switch.

    Returns for each node's name a descriptor of its network namespace, for `system_calls.join_network`. The
    namespaces have no name in /run/netns: they end with the last process and descriptor. Raises
    RunFailedError where `ip` or `tc` refuses.
    """
    try:
        run_ip(_bridge_lines(network))
        descriptors = {}
        for index, node in enumerate(network.nodes):
            descriptors[node.name] = system_calls.new_network()
            _build_node(node, index, descriptors[node.name])
        ends = [(interface, switch_end(interface, index))
                for index, node in enumerate(network.nodes) for interface in node.interfaces]
        run_ip(f"link set dev {end} mtu {interface.mtu} addrgenmode none master {interface.bridge} up"
            for interface, end in ends)
        run_tc(shaping_line(end, interface) for interface, end in ends)
    except OSError as error:
        raise RunFailedError(f"the emulated network could not be built: {error}; choose launch.mode=local to "
                             f"run without emulated NICs, or another machine") from error
    return descriptors


def _bridge_lines(network: EmulatedNetwork) -> Iterable[str]:
    mtus = {interface.bridge: interface.mtu for node in network.nodes for interface in node.interfaces}
    yield "link set lo up"
    for bridge, mtu in mtus.items():
        # Neither spanning tree nor multicast queries nor IPv6 may add bytes to the interfaces' counters.
        yield f"link add name {bridge} type bridge forward_delay 0 stp_state 0 mcast_snooping 0"
        yield f"link set dev {bridge} mtu {mtu} addrgenmode none up"


def _build_node(node: EmulatedNode, index: int, descriptor: int) -> None:
    def enter() -> None:
        system_calls.join_network(descriptor)

    lines = ["link set lo up"]
    for interface in node.interfaces:
        lines += [f"link add name {interface.name} mtu {interface.mtu} type veth "
                  f"peer name {switch_end(interface, index)} netns {os.getpid()}",
                  f"address add {interface.address}/16 dev {interface.name}",
                  f"link set dev {interface.name} addrgenmode none up"]
        if interface.fair:
            lines.append(f"link set dev {interface.name} gso_max_segs 1")
    run_ip(lines, enter)
    run_tc((shaping_line(interface.name, interface) for interface in node.interfaces), enter)
    if any(interface.fair for interface in node.interfaces):
        _share_fairly(enter)


def switch_end(interface: EmulatedInterface, index: int) -> str:
    """Return the name of the end that an interface of the `index`-th node has on its bridge."""
    return f"{interface.name}-{index}"


def _share_fairly(enter: Callable[[], None]) -> None:
    """Let each connection of a node have no more than about two packets in a link's queue.

    First come, first served is fair then, whatever the size of messages: packets of all connections that have something
    to send stand there alternately (TCP small queues; this kernel may have none of the queues fq, sfq and drr).
    """
    for name, value in _FAIR_TCP.items():
        run_program("tee", [f"/proc/sys/net/ipv4/{name}"], f"{value}\n", enter)


def shaping_line(name: str, interface: EmulatedInterface, factor: float = 1.0) -> str:
    """Return the command of `tc` that holds an end of an interface's link at so many times its rate, from now on."""
    bandwidth_gbps = factor * interface.bandwidth_gbps
    bits_per_second = max(1, round(bandwidth_gbps * 1e9))
    burst = burst_bytes(bandwidth_gbps)
    if interface.fair:
        # What the bucket holds passes at once: of scaled messages no more than two packets may.
        burst = max(2 * (interface.mtu + _FRAME_BYTES), round(bandwidth_gbps * 1e9 / 8 * _FAIR_BURST_SECONDS))
    # A queue of 200 ms and at least 1 MB loses nothing when many send to one, as fabrics with flow control
    # do.
    limit = burst + max(bits_per_second // 40, 1_000_000)
    return f"qdisc replace dev {name} root tbf rate {bits_per_second}bit burst {burst} limit {limit}"


def burst_bytes(bandwidth_gbps: float) -> int:
    """Return the token bucket's size: 2 ms at the rate, at least the 64 KiB that TCP hands over at once.

    What fits into the bucket passes at once, so a slow link gets a smaller one: 10 ms at the rate, and never
    less than a jumbo frame.
    """
    bytes_per_millisecond = bandwidth_gbps * 1e9 / 8 / 1000
    return round(max(2 * bytes_per_millisecond, min(72_000, 10 * bytes_per_millisecond), 12_000))


def run_ip(lines: Iterable[str], before: Callable[[], None] | None = None) -> None:
    """Run commands of `ip`, after `before` in the child. Raises OSError with what it said."""
    run_program("ip", ["-batch", "-"], "\n".join(lines) + "\n", before)


def run_tc(lines: Iterable[str], before: Callable[[], None] | None = None) -> None:
    """Run commands of `tc`, after `before` in the child. Raises OSError with what it said."""
    run_program("tc", ["-batch", "-"], "\n".join(lines) + "\n", before)
