"""The wind tunnel: ranks that wait instead of computing, behind the same executor, buckets and process groups."""

from __future__ import annotations

import dataclasses
import re
import selectors
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import read_cluster
from holmes_hpc.comm.scratch import Scratch
from holmes_hpc.comm.sharding import Route
from holmes_hpc.config.compose import compose
from holmes_hpc.emulation.namespaces import namespaces_available
from holmes_hpc.emulation.network import contents_share, emulated_network
from holmes_hpc.emulation.world import start_world
from holmes_hpc.engine.flat import FlatReduction
from holmes_hpc.engine.local_model import LocalModel
from holmes_hpc.engine.timed.clock import DeviceClock
from holmes_hpc.engine.timed.flat import ScaledFlats
from holmes_hpc.engine.timed.route import ring_elements
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.follow.progress import describe
from holmes_hpc.metrics.wind_tunnel import timed_row
from holmes_hpc.planner import for_library, plan, tunnel_prices
from holmes_hpc.planner.cost.gpu_constants import network_share
from holmes_hpc.runs import RunFolder, read_result, write_result
from holmes_hpc.runs.files import read_json
from holmes_hpc.values import ActionKind, Plan
from holmes_hpc.values.timed import TimedPrices
from tests.engine_worlds import TINY, train_world
from tests.runs_for_tests import train

TIMED = ["cluster.emulate.compute=timed", "cluster.emulate.scale=1000"]
PAPER = ["+cluster=holmes_paper", "model=gpt_3_6b", "train.precision=bfloat16", "parallel.micro_batch_size=4",
         "train.global_batch_size=64", "parallel=holmes", "parallel.pipeline=2", *TIMED]
COMPUTES = {kind.value for kind in (ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT,
                                   ActionKind.BACKWARD_WEIGHT)}
SMALL = ["cluster.partitions.ib.gpus_per_node=4", "cluster.partitions.roce.gpus_per_node=4"]


def tunnel(*words: str, cores: int = 2) -> tuple[Plan, TimedPrices]:
    """Return a plan for gloo, and the prices of its waits."""
    config = compose([*words])
    cluster = read_cluster(config.cluster)
    made = plan(config, "emulated", cluster)
    return for_library(made, knows_nodes=False), tunnel_prices(config, made, cluster, cores)


@pytest.fixture(scope="module")
def paper() -> tuple[Plan, TimedPrices]:
    return tunnel(*PAPER, *SMALL)


class Late:
    """A host's clock whose sleeps last longer than asked."""

    def __init__(self, *late: float) -> None:
        self.now, self._late = 100.0, iter(late)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds + next(self._late)


def test_a_wake_up_that_comes_late_delays_nothing_after_it() -> None:
    host = Late(0.3, 0.0, 0.1)
    device = DeviceClock(host.clock, host.sleep)
    device.run(1.0)
    assert host.now == pytest.approx(101.3)
    device.run(1.0)
    assert (host.now, device.free) == (pytest.approx(102.0), pytest.approx(102.0))
    late = device.lateness()
    assert (late.mean_seconds, late.worst_seconds) == (pytest.approx(0.15), pytest.approx(0.3))
    host.now += 5.0
    device.waited(0.0005)  # what was waited for had been there: the device went on long before the host looked
    assert device.free == pytest.approx(102.0)
    device.waited(5.0)
    device.run(1.0)
    assert device.free == pytest.approx(108.0)
    assert device.lateness().worst_seconds == pytest.approx(0.1)


def test_collectives_go_on_while_the_device_is_busy() -> None:
    host, polled = Late(*[0.0] * 1000), []
    device = DeviceClock(host.clock, host.sleep)
    device.poll, device.pending = lambda: polled.append(host.now), lambda: len(polled) < 3
    device.run(1.0)
    assert len(polled) == 3
    assert max(polled) < 100.1


@pytest.mark.parametrize("ring", [["a"] * 8 + ["b"] * 8, ["a", "b", "c"], ["a"] * 3 + ["b"] * 2,
                                  [node for node in "abcd" for _ in range(4)]], ids=["2x8", "3x1", "3+2", "4x4"])
def test_nodes_send_together_what_those_of_a_flat_ring_do(ring: list[str]) -> None:
    """(R - 1) / R of the buffer through every node's NICs, the simulator's rule, whatever groups carry it."""
    nodes, length = sorted(set(ring)), 10**9
    alike = len({ring.count(node) for node in nodes}) == 1
    groups = [list(nodes) for _ in range(ring.count("a"))] if alike else [ring]
    sent = 0
    for group in groups:
        each = ring_elements(length, ring, group)
        sent += each * sum(a != b for i, a in enumerate(group) for j, b in enumerate(group) if i != j)
    assert sent == pytest.approx(len(nodes) * length * (len(ring) - 1) / len(ring), rel=1e-6)


class Alone:
    """Stands for a communicator where nothing is exchanged."""

    def __init__(self, plan: Plan, rank: int) -> None:
        self.plan, self.rank = plan, rank


def test_buckets_are_the_real_ones_divided_and_lie_over_each_other() -> None:
    words = [*TINY, "+cluster=mixed", "parallel=holmes", "parallel.pipeline=2", *TIMED, "cluster.emulate.scale=8"]
    made, prices = tunnel(*words, "cluster.emulate.dilation=1")
    model = Architecture.from_config(compose(words).model)
    for rank in (0, 6):
        communicator: Any = Alone(made, rank)
        real, shapes = LocalModel(made, rank, model, 1), LocalModel(made, rank, model, 1, "meta")
        assert all(parameter.device.type == "meta" for parameter in shapes.parameters.values())
        scratch, scaled = Scratch(torch.device("cpu")), ScaledFlats(prices)
        for index, reduction in enumerate(made.reductions):
            if rank not in reduction.owners:
                continue
            flat = FlatReduction(index, reduction, real, Route(reduction, communicator, scratch), 0.004, torch.float32)
            timed = scaled(index, reduction, shapes, communicator, scratch, 0.004, torch.float32)
            assert len(timed.buckets) == len(flat.buckets) > 2
            for a, b in zip(timed.buckets, flat.buckets, strict=True):
                assert [each.piece for each in a.segments] == [each.piece for each in b.segments]
                assert a.gradients.numel() == pytest.approx(b.gradients.numel() / 8, abs=flat.route.shards)
            assert len({bucket.gradients.data_ptr() for bucket in timed.buckets}) < len(timed.buckets)


def test_prices_are_the_simulators_and_rates_those_described(paper: tuple[Plan, TimedPrices]) -> None:
    made, prices = paper
    config = compose([*PAPER, *SMALL])
    cluster = read_cluster(config.cluster)
    forward, backward = (prices.compute[kind, 0, 0] for kind in (ActionKind.FORWARD, ActionKind.BACKWARD))
    assert 1.5 * forward < backward < 4 * forward
    assert sum(end - begin for _, begin, end in prices.spans[0, 1]) == pytest.approx(1.0)
    assert prices.rates["ib/0", "ib"] == pytest.approx(4 * 200 * network_share("ib"))
    network = emulated_network(cluster, prices)
    ethernet, fabric = network.node("ib/0").interfaces
    assert cluster.rates["ethernet"] == 0.2, "which has no part here"
    for interface, gbps in ((ethernet, 25 * network_share("ethernet")), (fabric, 800 * network_share("ib"))):
        goodput = interface.bandwidth_gbps * contents_share(interface.mtu)
        assert goodput == pytest.approx(gbps / 1000 / prices.dilation)
        assert interface.fair
    assert not any(interface.fair for node in emulated_network(cluster).nodes for interface in node.interfaces)


def test_fewer_cores_take_longer_and_bytes_that_are_too_many_are_refused(paper: tuple[Plan, TimedPrices]) -> None:
    _, prices = paper
    _, slower = tunnel(*PAPER, *SMALL, cores=1)
    assert 1 <= prices.dilation < slower.dilation
    assert tunnel(*PAPER, *SMALL, "cluster.emulate.dilation=7")[1].dilation == 7
    with pytest.raises(ConfigurationError, match=r"set cluster.emulate.scale to \d+ or more"):
        tunnel(*PAPER, *SMALL, "cluster.emulate.scale=10")


def row_of(made: Plan, prices: TimedPrices, **changes: Any) -> dict[str, Any]:
    """Return the row of a step that went as planned, but for some changes."""
    by_network = {each.network: each.bytes for each in made.predicted.bytes_by_network}
    ethernet = by_network.pop("ethernet")
    row = {"step": 2, "loss": 0.0, "grad_norm": 0.0, "lr": 1e-4, "memory_gib": 0.2, "emulated": True,
           "step_seconds": made.predicted.step_seconds, "tokens_per_second": 5.0, "samples_per_second": 5.0,
           "tflops_per_gpu": 5.0, "mfu": 0.5, "exposed_comm_seconds": 0.1, "bubble_fraction": 0.1,
           "bytes_ethernet": ethernet / 1000, "bytes_fabric": sum(by_network.values()) / 1000}
    late = {name: changes.pop(name, 0.0) for name in ("worst", "mean")}
    return timed_row(row | changes, late["worst"], late["mean"], made, prices)


def test_what_nobody_computed_is_null_and_every_row_says_timed(paper: tuple[Plan, TimedPrices]) -> None:
    made, prices = paper
    row = row_of(made, prices)
    assert [row[name] for name in ("loss", "grad_norm", "lr", "memory_gib")] == [None] * 4
    assert (row["emulated"], row["timed"], row["step_seconds"]) == (True, True, made.predicted.step_seconds)
    assert "not_valid" not in row
    assert describe(row).startswith("emulated, timed: 5 tokens/s")


@pytest.mark.parametrize(("changes", "why"), [
    ({"step": 1}, "first step"),
    ({"worst": 1e3}, "raise cluster.emulate.dilation"),
    ({"mean": 1e3}, "raise cluster.emulate.dilation"),
    ({"bytes_ethernet": 1e4}, "ethernet carried .* lower cluster.emulate.scale"),
    ({"bytes_fabric": 1e4}, "fabric carried .* lower cluster.emulate.scale"),
])
def test_a_step_that_is_not_valid_has_no_figures(paper: tuple[Plan, TimedPrices], changes: dict[str, Any], why: str
                                                 ) -> None:
    row = row_of(*paper, **changes)
    assert [row[name] for name in ("step_seconds", "tokens_per_second", "mfu", "bubble_fraction")] == [None] * 4
    assert "emulated, timed: no figures" in describe(row)
    assert re.search(why, row["not_valid"])


@pytest.mark.parametrize(("others", "valid", "told"), [(None, 3, 100.0), (None, 2, None), (1.5, 3, None)],
                         ids=["half-of-all-but-the-first", "too-few-of-all", "others-held-cores"])
def test_a_run_has_a_speed_only_where_this_machine_kept_up(others: float | None, valid: int, told: float | None,
                                                           tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "tunnel")
    for step in range(1, 7):
        late = {} if 7 - step <= valid else {"not_valid": "ranks woke up too late"}
        folder.append_metrics({"step": step, "tokens_per_second": None if late else 100.0, "timed": True, **late})
    write_result(folder, "completed", error=None, emulated=True, others_held_cores=others)
    result = read_result(folder) or {}
    assert result["tokens_per_second_median"] == told
    why = {3: "other programs held 1.5 cores", 2: "2 of 5 steps are valid .*: ranks woke up too late"}[valid]
    assert ("no_speed" in result) == (told is None)
    assert told is not None or re.search(why, result["no_speed"])


@pytest.mark.parametrize("words", [
    ["+cluster=mixed", "parallel=holmes", "model.tied_embeddings=true", "cluster.partitions.ib.nodes=1",
     "cluster.partitions.roce.nodes=1"],
    ["+cluster=uniform", "parallel=holmes", "cluster.nodes=2", "cluster.gpus_per_node=2", "parallel.pipeline=1"],
    ["+cluster=mixed", "parallel=holmes", "cluster.partitions.ib.nodes=1", "cluster.partitions.roce.nodes=1",
     "parallel.schedule=zero_bubble", "optimizer.sharded=false"],
    ["+cluster=mixed", "parallel=holmes", "cluster.partitions.ib.nodes=1", "cluster.partitions.roce.nodes=1",
     "parallel.tensor=2"],
], ids=["pp2-dp2-tied", "dp4-two-levels", "zero-bubble-whole-sums", "pp2-tp2"])
def test_timed_ranks_run_the_same_actions_and_take_at_least_what_they_cost(words: list[str], tmp_path: Path) -> None:
    made, prices = tunnel(*TINY, *words, *TIMED, "cluster.emulate.dilation=1")
    slow = 0.004 / max(prices.compute.values())  # a tiny model takes an A100 no time
    prices = dataclasses.replace(prices, compute={key: seconds * slow for key, seconds in prices.compute.items()})
    world = train_world(tmp_path, [*words, *TIMED], made=made, timed=prices)
    real = train_world(tmp_path, words, made=made)
    for rank in range(made.world_size):
        kinds = [[(row["action"], row["kind"]) for row in each.timeline(rank) if row["step"] == 2 and row["stage"] >= 0]
                 for each in (world, real)]
        assert kinds[0] == kinds[1]
        steps = {row["step"]: (0.0, 0.0, 1e9) for row in world.timeline(rank)}
        for row in world.timeline(rank):
            if row["kind"] in COMPUTES:
                cost, last, first = steps[row["step"]]
                cost += prices.compute[ActionKind(row["kind"]), row["pipeline"], row["stage"]]
                steps[row["step"]] = cost, max(last, row["end"]), min(first, row["start"])
        spent = [last - first for _, last, first in steps.values()]
        assert sum(spent) >= 0.95 * sum(cost for cost, _, _ in steps.values()) > 0.02
    assert [row["loss"] for row in world.rows] == [None] * 4
    assert real.rows[0]["loss"] > 1


@pytest.mark.emulated
def test_eight_flows_of_small_messages_share_a_link_fairly(paper: tuple[Plan, TimedPrices], tmp_path: Path) -> None:
    """Each is as long as an activation, and all end together: first come, first served they would end one by one."""
    available, reason = namespaces_available()
    if not available:
        pytest.skip(reason)
    cluster = read_cluster(compose([*PAPER, *SMALL]).cluster)
    network = emulated_network(cluster, dataclasses.replace(paper[1], dilation=1.0))
    flows, length = 8, 50_000

    def receive(context: Any) -> int:
        with socket.create_server((network.node("roce/0").ethernet_address, 5000)) as server:
            ends, selector = {}, selectors.DefaultSelector()
            left = {}
            for _ in range(flows):
                connection, _ = server.accept()
                selector.register(connection, selectors.EVENT_READ)
                left[connection] = length
            for connection in left:
                connection.sendall(b"!")
            while len(ends) < flows:
                for key, _ in selector.select(20):
                    left[key.fileobj] -= len(key.fileobj.recv(1 << 16))
                    if not left[key.fileobj]:
                        ends[key.fd] = time.monotonic()
                        selector.unregister(key.fileobj)
        context.send({"event": "ends", "ends": sorted(ends.values())})
        return 0

    def send(context: Any) -> int:
        deadline, address = time.monotonic() + 20, (network.node("roce/0").ethernet_address, 5000)
        connections = []
        while len(connections) < flows:
            try:
                connections.append(socket.create_connection(address, timeout=20))
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        for connection in connections:
            connection.recv(1)
        context.send({"event": "began", "at": time.monotonic()})
        selector, left = selectors.DefaultSelector(), dict.fromkeys(connections, length)
        for connection in connections:
            connection.setblocking(False)
            selector.register(connection, selectors.EVENT_WRITE)
        while selector.get_map():
            for key, _ in selector.select(20):
                left[key.fileobj] -= key.fileobj.send(bytes(left[key.fileobj]))
                if not left[key.fileobj]:
                    selector.unregister(key.fileobj)
        for connection in connections:
            connection.setblocking(True)
            connection.recv(1)
        return 0

    def body(context: Any) -> int:
        for rank, (node, function) in enumerate((("roce-0", receive), ("ib-0", send))):
            context.fork_rank(rank, node, lambda function=function: function(context), tmp_path / f"{node}.log")
        return max(context.wait(40)[1] for _ in range(2))

    world = start_world(network, body)
    status = world.wait(60)
    world.kill()
    events = {event["event"]: event for event in world.events()}
    assert status == 0, [path.read_text() for path in tmp_path.glob("*.log")]
    seconds = [end - events["began"]["at"] for end in events["ends"]["ends"]]
    # One by one the first would end after an eighth of the time, and half of them after half of it.
    assert seconds[0] > 0.5 * seconds[-1]
    assert seconds[flows // 2 - 1] > 0.85 * seconds[-1]
    wire = flows * length * 8 / (25e9 * network_share("ethernet") / 1000)
    assert seconds[-1] > 0.9 * wire


def most_memory(path: Path, is_over: threading.Event) -> int:
    """Return the most bytes that all ranks of the run below a path were seen to have for themselves."""
    most = 0
    while not is_over.wait(1.0):
        job = next(iter(path.rglob("job.json")), None)
        ranks = (read_json(job) if job else None) or {}
        pids = [rank["pid"] for rank in ranks.get("ranks") or () if rank.get("pid")]
        found = 0
        for pid in pids:
            with suppress(OSError):
                text = Path(f"/proc/{pid}/smaps_rollup").read_text()
                found += sum(1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_"))
        most = max(most, found)
    return most


@pytest.mark.long
@pytest.mark.emulated
def test_a_run_says_timed_everywhere_and_sends_what_the_plan_says(tmp_path: Path) -> None:
    is_over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        memory = pool.submit(most_memory, tmp_path, is_over)
        try:
            done = train(tmp_path, [*PAPER, *SMALL, "train.steps=3", "train.global_batch_size=128",
                                    "cluster.emulate.dilation=5"])
        finally:
            is_over.set()
    assert 0 < 4 * memory.result() < 2 * 2**30, "64 ranks are to take less than 2 GiB together"
    assert "emulated, timed: ranks wait" in done.stderr
    assert "step 2/3  emulated, timed" in done.stderr
    assert "wind tunnel (emulated, timed)" in done.stdout
    assert (done.result["emulated"], done.result["timed"], done.result["final_loss"]) == (True, True, None)
    planned = {each["network"]: each["bytes"] for each in done.plan["predicted"]["bytes_by_network"]}
    ethernet = planned.pop("ethernet")
    for row in done.rows[1:]:
        assert row["timed"]
        assert row["bytes_ethernet"] == pytest.approx(ethernet, rel=0.05)
        assert row["bytes_fabric"] == pytest.approx(sum(planned.values()), rel=0.05)
    assert done.folder is not None
    assert not list(done.folder.glob("checkpoints/*"))
