"""RDMA adapters, whose data passes no interface: judged by the counters and states of their ports."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holmes_hpc.cluster import read_cluster
from holmes_hpc.cluster.adapters import PortCount, Ports
from holmes_hpc.cluster.link_state import is_well
from holmes_hpc.config.compose import compose
from holmes_hpc.launch.rank import ports as ports_module
from holmes_hpc.launch.rank.ports import ports_of
from holmes_hpc.metrics import RankReport, Usage
from holmes_hpc.metrics.backlog import Backlog
from holmes_hpc.metrics.port_waits import FIRST_SAMPLES, PortWaits
from holmes_hpc.metrics.slow_nics import SlowNics
from holmes_hpc.metrics.step import NOT_MEASURED
from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.beats import Beat, read_beat, write_beat
from holmes_hpc.runs.supervision import Limits, Supervisor
from holmes_hpc.values.doing import Doing
from tests.run_folders import make_plan

HDR = "200 Gb/sec (4X HDR)"


class Adapter:
    """One made-up adapter below `folder`, laid out as the kernel does."""

    def __init__(self, folder: Path, name: str = "mlx5_0", state: str = "4: ACTIVE", rate: str = HDR) -> None:
        self.port = folder / name / "ports/1"
        (self.port / "counters").mkdir(parents=True)
        self.sent_bytes, self.ticks = 0, 0
        self.write(state=state, rate=rate)
        self.send(0, 0)

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.port / name).write_text(f"{text}\n")

    def send(self, count: int, ticks: int) -> None:
        self.sent_bytes, self.ticks = self.sent_bytes + count, self.ticks + ticks
        self.write(**{"counters/port_xmit_data": str(self.sent_bytes // 4), "counters/port_xmit_wait": str(self.ticks)})


def test_counters_and_states_are_those_of_the_active_ports_that_are_named(tmp_path: Path) -> None:
    first = Adapter(tmp_path)
    Adapter(tmp_path, "mlx5_1", state="1: DOWN")
    Adapter(tmp_path, "mlx5_10")
    first.send(4000, 7)
    assert Ports(["mlx5_0", "mlx5_1"], tmp_path).counts() == {"mlx5_0/1": PortCount(4000, 7)}
    assert Ports((), tmp_path).states() == {"mlx5_0/1": f"up, {HDR}", "mlx5_10/1": f"up, {HDR}"}
    assert not Ports(["mlx5_1"], tmp_path) and not Ports((), tmp_path / "nowhere")


@pytest.mark.parametrize(("changes", "expected"), [
    ({"rate": "100 Gb/sec (2X HDR)"}, f"up, but at 100 Gb/sec (2X HDR), which was {HDR} at the start"),
    ({"state": "1: DOWN"}, "down (DOWN)"), ({"state": "2: INIT"}, "down (INIT)"), ({"rate": ""}, "up, "),
    ({"rate": "400 Gb/sec (4X NDR)"}, "up, 400 Gb/sec (4X NDR)"), ({"rate": "fast"}, "up, fast"),
    ({"state": "4: ACTIVE"}, f"up, {HDR}"),
])
def test_a_link_that_got_worse_is_not_well(tmp_path: Path, changes: dict[str, str], expected: str) -> None:
    adapter = Adapter(tmp_path)
    ports = Ports((), tmp_path)
    adapter.write(**changes)
    [state] = ports.states().values()
    assert state == expected and is_well(state) == (not expected.startswith(("down", "up, but")))


def test_an_adapter_that_was_taken_out_is_missing_and_counts_nothing(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    ports, waits = Ports((), tmp_path), PortWaits(Ports((), tmp_path))
    adapter.port.rename(tmp_path / "out")
    assert ports.states() == {"mlx5_0/1": "missing"} and ports.counts() == {}
    assert waits.sent_bytes() is None and not waits.wait()


@pytest.mark.parametrize("text", ["", "-4", "many", "1e9", "9" * 5000, "\xff", "١٢"])
def test_a_counter_of_another_form_is_none(tmp_path: Path, text: str) -> None:
    adapter = Adapter(tmp_path)
    adapter.write(**{"counters/port_xmit_data": text})
    assert Ports((), tmp_path).counts() == {}
    adapter.write(**{"counters/port_xmit_data": "5", "counters/port_xmit_wait": text})
    assert Ports((), tmp_path).counts() == {"mlx5_0/1": PortCount(20, None)}


def test_an_adapter_with_counters_of_its_own_hardware_alone_is_counted(tmp_path: Path) -> None:
    """As those of EFA are."""
    adapter = Adapter(tmp_path)
    for path in (adapter.port / "counters").iterdir():
        path.unlink()
    (adapter.port / "hw_counters").mkdir()
    adapter.write(**{"hw_counters/tx_bytes": "4096"})
    assert Ports((), tmp_path).counts() == {"mlx5_0/1": PortCount(4096, None)}


def test_data_waits_where_ticks_for_a_byte_are_many_times_the_usual_ones(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    waits = PortWaits(Ports((), tmp_path))

    def sample(count: int, ticks: int) -> bool:
        adapter.send(count, ticks)
        return waits.wait()

    assert not any(sample(4_000_000, 100) for _ in range(FIRST_SAMPLES)), "what is usual is learned"
    assert not sample(4_000_000, 300) and not sample(400_000, 20) and not sample(0, 0)
    assert sample(400_000, 1000) and sample(0, 1)
    adapter.sent_bytes = adapter.ticks = 0
    assert not sample(400_000, 1000), "its counters were set back"


def run_of(tmp_path: Path, *windows: tuple[int, int]) -> list[str]:
    """Feed a run of ten-second windows, in each of which the adapter of node 2 sends so much and waits so long."""
    adapter, said = Adapter(tmp_path), list[str]()
    backlog = Backlog((None, None), dict, PortWaits(Ports((), tmp_path)))
    nics, step = SlowNics(make_plan(), said.append), 0
    for count, ticks in windows:
        for _ in range(10):
            for _ in range(2):
                adapter.send(count // 20, ticks // 20)
                backlog.look(0.5)
            step += 1
            busy = backlog.busy_since_last()[-1]
            reports = [RankReport(1.0, 0.0, 0.0, 1.0, bytes_fabric=count / 10 if rank == 4 else NOT_MEASURED,
                                  busy_fabric=busy if rank == 4 else 0.0) for rank in range(8)]
            nics.add(step, reports, 1.0, stragglers=False)
    return said


GOOD, WAITS, IDLE = (10 ** 9, 20_000), (10 ** 8, 2_000_000), (10 ** 8, 2_000)


def test_an_adapter_that_becomes_slow_in_mid_run_is_named_and_so_is_its_recovery(tmp_path: Path) -> None:
    said = run_of(tmp_path, GOOD, GOOD, WAITS, WAITS, GOOD)
    assert len(said) == 2
    assert "the fabric NIC of node roce-0, or the link behind it, has become slow: it sends 80.00 Mbit/s" in said[0]
    assert said[1].endswith("is slow no more")


@pytest.mark.parametrize("windows", [(GOOD, GOOD, IDLE, IDLE), (WAITS, WAITS, WAITS), (GOOD, GOOD, GOOD)])
def test_an_adapter_with_little_to_do_or_that_always_waits_is_not_slow(tmp_path: Path,
                                                                       windows: tuple[tuple[int, int], ...]) -> None:
    assert not run_of(tmp_path, *windows)


def test_bytes_of_a_fabric_are_those_of_its_adapters(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    usage = Usage(None, "lo", Ports((), tmp_path))
    adapter.send(8000, 0)
    assert usage.sent_since_last() == (NOT_MEASURED, 8000.0)
    assert Usage(None, None, None).sent_since_last() == (NOT_MEASURED, NOT_MEASURED)


@pytest.mark.parametrize(("overrides", "backend", "expected"), [
    ([], "nccl", ["mlx5_0/1", "mlx5_1/1"]), (["cluster.partitions.roce.hca=mlx5_1"], "nccl", ["mlx5_1/1"]),
    (["cluster.partitions.roce.hca='mlx5_0:1'"], "nccl", ["mlx5_0/1"]), ([], "gloo", None), ([], None, None),
    (["cluster.partitions.roce.nic=eth100"], "nccl", None),
])
def test_groups_go_by_the_adapters_that_the_cluster_file_names(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], backend: str | None,
        expected: list[str] | None) -> None:
    for name in ("mlx5_0", "mlx5_1"):
        Adapter(tmp_path, name)
    monkeypatch.setattr(ports_module, "Ports", lambda names: Ports(names, tmp_path))
    cluster = read_cluster(compose(["+cluster=roce", *overrides]).cluster)
    found = ports_of(cast(Any, SimpleNamespace(cluster=cluster, rank=0, backend=backend)))
    assert (None if found is None else list(found.states())) == expected


def test_a_link_that_gets_worse_in_mid_run_is_said_once(tmp_path: Path) -> None:
    """With eight adapters and long words in a record, too."""
    folder, said, number = RunFolder.create(tmp_path, "mixed"), list[str](), 0
    now = [0.0]
    supervisor = Supervisor(folder, {0: "n1", 1: "n2"}, Limits(), said.append, clock=lambda: now[0])
    well = {f"mlx5_{index}/1": f"up, {HDR}" for index in range(8)}
    worse = {"mlx5_7/1": f"up, but at 50 Gb/sec (1X HDR), which was {HDR} at the start"}
    for links in (well, well, {**worse, **well, **worse}, {**worse, **well, **worse}, well):
        for rank in (0, 1):
            number += 1
            write_beat(folder, rank, Beat.of(number, Doing(3, "x" * 300, 0, "y" * 300), 0.0,
                                             links=links if rank else well))
            assert (beat := read_beat(folder.beat_path(rank))) is not None and beat.links
        now[0] += 1
        assert supervisor.look() is None
    assert len(said) == 1
    assert said[0].startswith(f"the adapter mlx5_7/1 of node n2 is up, but at 50 Gb/sec (1X HDR), which was {HDR} at")
