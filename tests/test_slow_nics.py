"""A NIC that becomes slow in mid-run is named, against its own rate before; one with little to send is not."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from holmes_hpc.emulation.system_calls import join_network
from holmes_hpc.metrics import RankReport
from holmes_hpc.metrics.backlog import Backlog, unsent_bytes
from holmes_hpc.metrics.slow_nics import SlowNics
from holmes_hpc.metrics.step import NOT_MEASURED, by_rank
from tests.run_folders import make_plan
from tests.test_faults import SMALL, Running, wait_for

BYTES = 1e6


def said_of(*windows: tuple[float, dict[int, float], bool]) -> list[str]:
    """Feed at least five steps each: the seconds of one, for which share of it bytes wait by rank, any stragglers."""
    said: list[str] = []
    nics, step = SlowNics(make_plan(), said.append), 0
    for step_seconds, waiting, stragglers in windows:
        for _ in range(max(5, round(10 / step_seconds))):
            step += 1
            nics.add(step, [report(rank, step_seconds * waiting.get(rank, 0.0)) for rank in range(8)], step_seconds,
                     stragglers=stragglers)
    return said


def report(rank: int, busy: float) -> RankReport:
    """Return the report of a rank; the even ones count for their nodes."""
    measured = BYTES if rank % 2 == 0 else NOT_MEASURED
    return RankReport(1.0, 0.0, 0.0, 1.0, bytes_ethernet=measured, busy_ethernet=busy)


def test_a_nic_that_becomes_slow_is_named_once_and_so_is_its_recovery() -> None:
    well = (1.0, {4: 0.1}, False)
    said = said_of(well, (8.0, {4: 0.95, 0: 0.1}, False), (8.0, {4: 0.9}, False), well, well)
    assert len(said) == 2
    name = "the Ethernet NIC of node roce-0, or the link behind it,"
    assert (f"{name} has become slow: it sends 1.00 Mbit/s, at best it sent 8.00 Mbit/s in this run, and bytes wait in "
            "it for 95% of the time") in said[0]
    assert said[1].endswith(f"{name} is slow no more")


def test_one_that_waits_for_a_slow_nics_confirmations_is_not_named() -> None:
    well = (1.0, {4: 0.1}, False)
    said = said_of(well, (8.0, {4: 0.98, 6: 0.53}, False))
    assert len(said) == 1
    assert "roce-0" in said[0]
    assert len(said_of(well, (8.0, {4: 0.98, 6: 0.95}, False))) == 2, "two that are slow alike"


def test_a_nic_that_waits_for_something_to_send_is_not_slow() -> None:
    assert not said_of((1.0, {4: 0.1}, False), (8.0, {4: 0.1, 0: 0.2}, False))


def test_a_network_that_is_always_busy_is_not_slow() -> None:
    assert not said_of(*[(1.0, {0: 0.95, 4: 0.95}, False)] * 4)
    assert not said_of((1.0, {0: 0.95}, False), (2.0, {0: 0.95}, False)), "half its best rate is within what varies"


def test_nobody_is_accused_while_a_rank_is_a_straggler() -> None:
    """Its neighbours' queues are full, since it does not read."""
    assert not said_of((1.0, {}, False), (8.0, {4: 0.95}, True))


def test_a_queue_is_counted_by_the_senders_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        accepted, _ = server.accept()
        backlog = Backlog(("lo", None, "nosuch0"))
        backlog.look(1.0)
        sender.setblocking(False)
        with pytest.raises(BlockingIOError):
            while True:  # nobody reads
                sender.send(bytes(1 << 16))
        assert unsent_bytes(Path("/proc/thread-self/net/tcp").read_text())["127.0.0.1"] > 0
        backlog.busy_since_last()
        backlog.look(0.5)
        assert backlog.busy_since_last() == [0.5, 0.0, 0.0]
        assert backlog.busy_since_last() == [0.0, 0.0, 0.0]
        accepted.close()


@pytest.mark.parametrize("text", ["", "sl\n", "sl\n 0: nonsense\n", "sl\n 0: 0100007F:1 0 01 x:y\n"])
def test_a_table_of_another_form_is_nothing(text: str) -> None:
    backlog = Backlog(("lo",), lambda: unsent_bytes(text))
    backlog.look(1.0)
    assert backlog.busy_since_last() == [0.0]


def slow_down(pid: int, interface: str, rate: str) -> None:
    """Shape an interface in the network namespace of a process."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            join_network(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY))
            status = subprocess.run(["tc", "qdisc", "replace", "dev", interface, "root", "tbf", "rate", rate, "burst",
                                     "1600", "limit", "100000"], check=False).returncode
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.long
@pytest.mark.emulated
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to enter the namespace of a rank")
def test_a_nic_slowed_down_in_mid_run_is_named(tmp_path: Path) -> None:
    run = Running(tmp_path, [*SMALL, "train.timeout_seconds=60"])
    try:
        time.sleep(25)  # two windows of its usual rate
        slow_down(run.pids[2], "eth0", "100kbit")
        notes = run.folder / "logs" / "rank-0.log"
        wait_for(lambda: "has become slow" in notes.read_text(), 90, "the NIC is named")
        text = notes.read_text()
        assert "the Ethernet NIC of node roce-0, or the link behind it, has become slow" in text
        assert text.count("has become slow") == 1, text
    finally:
        run.process.kill()
        run.process.communicate()


def test_a_row_now_and_then_says_what_each_node_sent() -> None:
    reports = [RankReport(1.0, 0.0, 0.0, 1.5, bytes_ethernet=8.0 if rank % 2 == 0 else NOT_MEASURED)
               for rank in range(4)]
    assert by_rank(reports) == {"memory_gib_per_rank": [1.5] * 4, "bytes_ethernet_per_rank": [8, None, 8, None]}
    assert by_rank([RankReport(1.0, 0.0, 0.0, 1.5)]) == {"memory_gib_per_rank": [1.5]}
