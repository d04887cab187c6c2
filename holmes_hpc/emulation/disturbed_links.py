"""What acts on the links of an emulated network now: rates and losses by `tc`, other traffic and delays by sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from holmes_hpc.emulation import packet_filters, system_calls
from holmes_hpc.emulation.network import EmulatedInterface, EmulatedNetwork, run_ip, run_tc, shaping_line, switch_end
from holmes_hpc.emulation.other_traffic import Stream
from holmes_hpc.emulation.relay import Lateness, Relay
from holmes_hpc.values.disturbances import DELAY, LOSS, RATE, TRAFFIC, Disturbance

_FOR_EVER = 400_000_000
"""Hundredths of a second that a bridge remembers an address whose packets no longer pass it themselves."""


@dataclass(frozen=True)
class Link:
    """One interface of a node, and the name of its end on the bridge."""

    slot: str
    node: str
    interface: EmulatedInterface
    end: str


class DisturbedLinks:
    """The links of a network whose namespaces are those of `descriptors`, by the names of its nodes.

    Make it where the bridges are. Every call that changes something raises OSError where `tc` or `ip` refuses.
    """

    def __init__(self, network: EmulatedNetwork, descriptors: Mapping[str, int]) -> None:
        self._descriptors = descriptors
        self._links = {
            (node.slot, interface.family): Link(node.slot, node.name, interface, switch_end(interface, index))
            for index, node in enumerate(network.nodes) for interface in node.interfaces}
        self._rates = dict.fromkeys(self._links, 1.0)
        self._losses: dict[tuple[str, str], dict[str, float]] = {}
        self._late: dict[tuple[str, str], dict[str, Lateness]] = {}
        self._streams: dict[tuple[str, str, str], Stream] = {}
        self.relays: dict[tuple[str, str], Relay] = {}
        self._prepare(network.disturbances)

    @property
    def streams(self) -> list[Stream]:
        """Other traffic that flows now."""
        return [stream for stream in self._streams.values() if stream.bits_per_second]

    def act(self, acting: tuple[Disturbance, ...]) -> None:
        """Let these act, and nothing else any more."""
        self._set_rates(acting)
        self._set_losses(acting)
        self._set_delays(acting)
        self._set_traffic(acting)

    def _prepare(self, disturbances: tuple[Disturbance, ...]) -> None:
        """Do what has to be done before connections are made and addresses learnt."""
        lossy = {each.network for each in disturbances if each.kind == LOSS}
        for link in self._links.values():
            if link.interface.family in lossy:
                # Else whole bundles of packets would be lost together: TCP leaves it to the NIC to divide them.
                run_ip([f"link set dev {link.interface.name} gso_max_segs 1"], self._inside(link))
        late = {each.network for each in disturbances if each.kind == DELAY}
        bridges = {link.interface.bridge for link in self._links.values() if link.interface.family in late}
        if bridges:
            run_ip(f"link set dev {bridge} type bridge ageing_time {_FOR_EVER}" for bridge in sorted(bridges))

    def _inside(self, link: Link) -> Callable[[], None]:
        return lambda: system_calls.join_network(self._descriptors[link.node])

    def _set_rates(self, acting: tuple[Disturbance, ...]) -> None:
        wanted = dict.fromkeys(self._links, 1.0)
        for each in acting:
            for slot in each.nodes if each.kind == RATE else ():
                wanted[slot, each.network] *= each.amount
        changed = {key: factor for key, factor in wanted.items() if factor != self._rates[key]}
        for key, factor in changed.items():
            link = self._links[key]
            run_tc([shaping_line(link.interface.name, link.interface, factor)], self._inside(link))
        if changed:
            run_tc(shaping_line(self._links[key].end, self._links[key].interface, factor)
                   for key, factor in changed.items())
        self._rates = wanted

    def _set_losses(self, acting: tuple[Disturbance, ...]) -> None:
        """Lose packets on the way from the bridge to their receiver, when they have passed the sender's link."""
        wanted: dict[tuple[str, str], dict[str, float]] = {}
        for each, sender, receiver in _pairs(acting, LOSS):
            shares = wanted.setdefault((receiver, each.network), {})
            address = self._links[sender, each.network].interface.address
            shares[address] = 1 - (1 - shares.get(address, 0.0)) * (1 - each.amount)
        lines = []
        for key in sorted({*wanted, *self._losses}):
            if wanted.get(key) != self._losses.get(key):
                lines += _filter_lines(self._links[key].end, "egress",
                                       packet_filters.losing(wanted[key]) if key in wanted else None)
        if lines:
            run_tc(lines)
        self._losses = wanted

    def _set_delays(self, acting: tuple[Disturbance, ...]) -> None:
        wanted: dict[tuple[str, str], dict[str, Lateness]] = {}
        for each, sender, receiver in _pairs(acting, DELAY):
            late = wanted.setdefault((sender, each.network), {})
            address = self._links[receiver, each.network].interface.address
            other = late.get(address, Lateness(0.0, 0.0))
            late[address] = Lateness(other.seconds + each.amount / 1000, other.jitter_seconds + each.jitter_ms / 1000)
        for key in sorted({*wanted, *self._late}):
            if wanted.get(key) == self._late.get(key):
                continue
            link, before = self._links[key], self.relays.pop(key, None)
            if key in wanted:
                self.relays[key] = Relay(link.end, link.interface.bridge, wanted[key])
            run_tc(_filter_lines(link.end, "ingress",
                                 packet_filters.dropping_to(list(wanted[key])) if key in wanted else None))
            if before is not None:
                before.close()
        self._late = wanted

    def _set_traffic(self, acting: tuple[Disturbance, ...]) -> None:
        """Send so much of the present rate that the rest is left to the run."""
        shares: dict[tuple[str, str, str], float] = {}
        for each, sender, receiver in _pairs(acting, TRAFFIC):
            key = sender, receiver, each.network
            shares[key] = shares.get(key, 0.0) + each.amount
        for key in {*shares, *self._streams}:
            sender, receiver, family = key
            link, other = self._links[sender, family], self._links[receiver, family]
            if key not in self._streams:
                self._streams[key] = Stream.between(
                    self._descriptors[link.node], self._descriptors[other.node], link.interface.address,
                    other.interface.address, link.interface.mtu)
            gbps = min(self._rates[each.slot, family] * each.interface.bandwidth_gbps for each in (link, other))
            self._streams[key].bits_per_second = shares.get(key, 0.0) * gbps * 1e9


def _pairs(acting: tuple[Disturbance, ...], kind: str) -> Iterator[tuple[Disturbance, str, str]]:
    for each in acting:
        for sender, receiver in each.pairs if each.kind == kind else ():
            yield each, sender, receiver


def _filter_lines(end: str, side: str, program: list[packet_filters.Instruction] | None) -> list[str]:
    """Return the commands that put a program on one side of an interface, in the place of one before, or take it."""
    if program is None:
        return [f"filter del dev {end} {side}"]
    return [f"qdisc replace dev {end} clsact",
            f"filter replace dev {end} {side} prio 1 handle 1 protocol all bpf da bytecode "
            f"\"{packet_filters.for_tc(program)}\""]
