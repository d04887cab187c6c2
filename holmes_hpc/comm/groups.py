"""Build every process group of a plan, each on its own network, and prove that each one works."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Store, Work

from holmes_hpc.comm.activity import Activity
from holmes_hpc.comm.backends import Backend, RankNode, open_backend
from holmes_hpc.comm.causes import first_line
from holmes_hpc.comm.devices import check_devices
from holmes_hpc.comm.gloo import open_backend as open_gloo
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.comm.progress import Progress
from holmes_hpc.comm.streams import Streams
from holmes_hpc.comm.warm_up import exchanges_parts, warm_up, warm_up_edge
from holmes_hpc.errors import ConfigurationError, NetworkError
from holmes_hpc.values import Group, Plan
from holmes_hpc.values.backend_kinds import GLOO
from holmes_hpc.values.doing import CONNECTING

_FURTHER_QUEUES = 6
"""Beside those of process groups: of the computation, of copies, of three numbers of steps and of their ends."""

Report = Callable[[int, int, str], None]



class Communicator:
    """The process groups of one rank, by their index in `Plan.groups`; `connect` makes it.

    `world` is the control group: gloo on the CPU, whatever the other groups use. `device` is where tensors
    must lie for the other groups, `streams` its queues where they run behind the host. `progress` lets collectives go
    on while this rank is blocked in a wait.
    """

    def __init__(
        self, plan: Plan, rank: int, world: ProcessGroup, backend: Backend, train_timeout: timedelta,
        activity: Activity | None = None,
    ) -> None:
        self.plan = plan
        self.rank = rank
        self.world_size = plan.world_size
        self.world = world
        self.backend = backend
        self.device = backend.device
        self.train_timeout = train_timeout
        self.activity = activity or Activity()
        self.streams = backend.streams
        self.progress = Progress(told=backend.abilities.waits_on_host)
        self.activity.follow(self.streams)
        self._groups: dict[int, ProcessGroup] = {0: world}
        self._index: dict[ProcessGroup, int] = {world: 0}
        self._reverse: dict[ProcessGroup, ProcessGroup] = {}
        self._edges: dict[frozenset[int], int] = {}

    def add(self, index: int, group: ProcessGroup, reverse: ProcessGroup | None = None) -> None:
        """Keep the group of `Plan.groups[index]`; `reverse` carries an edge's transfers backwards."""
        self._groups[index] = group
        self._index[group] = index
        if reverse is not None:
            self._reverse[group] = reverse
            self._index[reverse] = index
        if self.plan.groups[index].kind == "pipeline":
            for pair in itertools.combinations(self.plan.groups[index].ranks, 2):
                self._edges.setdefault(frozenset(pair), index)

    @property
    def side_streams(self) -> Streams | None:
        """The device's queues, where all steps of a collective may stand on them at once.

        A step that waits there for the one before holds up what shares its hardware queue, which may be what another
        rank needs to come to that one: so each process group, each side queue and the computation need their own.
        """
        apart = self.streams is not None and self.streams.apart(len(self._index) - 1 + _FURTHER_QUEUES)
        return self.streams if apart else None

    def has_group(self, index: int) -> bool:
        """Return whether this rank shares group `index` with another rank (a group of one builds nothing)."""
        return index in self._groups and len(self.plan.groups[index].ranks) > 1

    def group(self, index: int) -> ProcessGroup:
        """Return the group of `Plan.groups[index]`.

        Raises ValueError when this rank is not in it or alone in it (`has_group` says so beforehand).
        """
        if index not in self._groups:
            known = self.plan.groups[index] if index < len(self.plan.groups) else "the plan has no such group"
            raise ValueError(f"rank {self.rank} has no process group {index}: {known}")
        return self._groups[index]

    def edge(self, rank_a: int, rank_b: int) -> ProcessGroup:
        """Return the pipeline group that holds both ranks, in either order.

        Raises ValueError when the plan has no such edge or this rank is not in it.
        """
        index = self._edges.get(frozenset((rank_a, rank_b)))
        if index is None:
            raise ValueError(f"rank {self.rank} is on no pipeline edge between ranks {rank_a} and {rank_b}")
        return self._groups[index]

    def towards(self, group: ProcessGroup, source: int, destination: int) -> ProcessGroup:
        """Return the group that carries an edge's transfers from `source` to `destination`."""
        ranks = self.plan.groups[self._index[group]].ranks
        if ranks.index(source) < ranks.index(destination):
            return group
        return self._reverse.get(group, group)

    def network(self, group: ProcessGroup) -> str:
        """Return the network that a group is on."""
        return self.plan.groups[self._index[group]].network

    def describe(self, group: ProcessGroup) -> str:
        """Return the group in words: kind, ranks with their nodes, network, interface."""
        return self.describe_index(self._index[group])

    def describe_index(self, index: int) -> str:
        """Return the group of `Plan.groups[index]` in words."""
        return _describe(self.plan, self.plan.groups[index], self.backend)

    def wait(self, work: Work | None, group: ProcessGroup, doing: str, *, noted: bool = True) -> None:
        """Wait for an operation, at most the training timeout. Raises NetworkError that names the group.

        Where the GPU's stream alone waits, the backend's own watchdog keeps the timeout.
        """
        if work is None:
            return
        with self.naming(group, doing, noted=noted):
            if self.backend.abilities.waits_on_host:
                with self.progress.blocked():
                    work.wait(self.train_timeout)
            else:
                work.wait()

    @contextmanager
    def naming(self, group: ProcessGroup, doing: str, *, noted: bool = True) -> Iterator[None]:
        """Turn torch's errors inside the block, an operation of the group, into NetworkErrors that name it.

        Unless `noted`, and in another thread than the one that trains, it does not count as what the rank does now.
        """
        noted = noted and not self.progress.here()
        on_host = self.streams is None or group is self.world
        try:
            with self.activity.waiting(self._index[group], doing, on_host=on_host) if noted else nullcontext():
                yield
        except RuntimeError as error:
            raise NetworkError(
                f"rank {self.rank}, {doing}: {self.describe(group)} broke: {first_line(error)}; "
                "another rank ended or hangs: look at its log, or raise train.timeout_seconds "
                f"(now {self.train_timeout.total_seconds():g}) if it is only slow"
            ) from error

    def barrier(self) -> None:
        """Wait until every rank is here. Raises NetworkError when one is missing."""
        with self.naming(self.world, "at a barrier"):
            dist.all_reduce(torch.zeros(1), group=self.world)

    def close(self) -> None:
        """Give all groups back; the communicator cannot be used afterwards."""
        self.progress.end()
        dist.destroy_process_group()


def connect(
    store: Store,
    rank: int,
    world_size: int,
    plan: Plan,
    networks: NodeNetworks,
    backend: str = GLOO.name,
    start_timeout: float | timedelta = 300.0,
    train_timeout: float | timedelta = 120.0,
    progress: Report | None = None,
    *,
    gloo_threads: int = 2,
    device: torch.device | None = None,
    activity: Activity | None = None,
    shares_devices: bool = False,
    device_queues: int = 8,
) -> Communicator:
    """Build and warm up every group of the plan; all ranks call it with the same plan.

    Every rank walks the groups in the plan's order, so that no two ranks wait for each other. Timeouts are in
    seconds: the first holds until a group has proved to work, the second afterwards. `progress(done, total,
    text)` is called before the first group and after each one. `device` is the rank's GPU, for
    backends that need one; ranks may have the same where it `shares_devices`, and its streams
    share `device_queues`. `activity` is what the rank does,
    to go on with.

    Raises NetworkError that names the group which cannot connect, ConfigurationError for an unknown backend.
    """
    start, train = _duration(start_timeout), _duration(train_timeout)
    if plan.world_size != world_size or plan.groups[0].kind != "world":
        raise ValueError(f"the plan is for {plan.world_size} ranks and starts with {plan.groups[0]}")
    node = RankNode(networks, device, gloo_threads, device_queues)
    gloo = open_gloo(node)
    maker: Backend = gloo if backend == gloo.name else open_backend(backend, node)
    _check_networks(plan, maker)
    activity = activity or Activity()

    def report(done: int, total: int, text: str) -> None:
        activity.begin(f"{CONNECTING} process groups, {done} of {total} are")
        if progress is not None:
            progress(done, total, text)

    total = sum(len(group.ranks) > 1 for group in plan.groups[1:]) + 1
    report(0, total, _short(plan.groups[0]))
    with _starting(plan, plan.groups[0], gloo, rank, start):
        world = gloo.start_world(store, rank, world_size, plan.groups[0].network, start)
        dist.all_reduce(torch.zeros(1), group=world)
        gloo.set_timeout(world, train)
        if not shares_devices and (name := maker.device_name()) is not None:
            check_devices(plan, rank, name, world)
    communicator = Communicator(plan, rank, world, maker, train, activity)
    done = 1
    report(done, total, _short(plan.groups[0]))
    for index, group in enumerate(plan.groups[1:], start=1):
        if len(group.ranks) > 1:
            with _starting(plan, group, maker, rank, start):
                _build(communicator, index, maker, start)
            done += 1
            report(done, total, _short(group))
    gloo.yield_to_compute()
    return communicator


def _check_networks(plan: Plan, backend: Backend) -> None:
    """Raise ConfigurationError where the plan puts a group on a network that the backend cannot use."""
    usable = backend.abilities.networks
    unknown = {group.network for group in plan.groups[1:] if usable is not None and group.network not in usable}
    if unknown:
        raise ConfigurationError(f"launch.backend={backend.name}: it knows the networks {', '.join(usable or ())}, and "
                                 f"the plan has groups on {', '.join(sorted(unknown))}; set another launch.backend")


def _build(communicator: Communicator, index: int, backend: Backend, timeout: timedelta) -> None:
    """Build one group, warm it up, and give it the training timeout."""
    group = communicator.plan.groups[index]
    is_edge = group.kind == "pipeline"
    built = backend.new_group(group.ranks, group.kind, group.network, timeout)
    reverse = None
    if is_edge and not backend.abilities.has_tags:
        reverse = backend.new_group(group.ranks, group.kind, group.network, timeout)
    if built is None:
        return
    communicator.add(index, built, reverse)
    if is_edge:
        warm_up_edge(built, reverse or built, group.ranks, communicator.rank, backend.device, timeout)
    else:
        warm_up(built, backend, round(communicator.plan.synchronization.bucket_mib * 2**20), timeout,
                exchanges=exchanges_parts(communicator.plan, index))
    for each in (built, reverse):
        if each is not None:
            backend.set_timeout(each, communicator.train_timeout)


@contextmanager
def _starting(plan: Plan, group: Group, backend: Backend, rank: int, timeout: timedelta) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise NetworkError(
            f"rank {rank} could not connect {_describe(plan, group, backend)}: {first_line(error)}; "
            f"check with `python -m holmes_hpc.doctor` that these nodes reach each other by {group.network}, "
            "and the fabric and interface settings of their labels in the cluster file; "
            f"if a node is only slow to start, raise train.start_timeout_seconds (now {timeout.total_seconds():g})"
        ) from error


def _describe(plan: Plan, group: Group, backend: Backend) -> str:
    places = {place.rank: place for place in plan.ranks}
    members = ", ".join(f"{rank} on {places[rank].node or places[rank].slot}" for rank in group.ranks)
    here = backend.describe(group.network)
    return f"the {group.kind} group of ranks {members} over {group.network} ({here} here)"


def _short(group: Group) -> str:
    ranks = ", ".join(map(str, group.ranks)) if len(group.ranks) <= 8 else f"{len(group.ranks)} in all"
    return f"{group.kind} group of ranks {ranks} over {group.network}"


def _duration(seconds: float | timedelta) -> timedelta:
    return seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
