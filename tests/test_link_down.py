"""A link that goes down in mid-run is named: which node's interface, and the state of both ends."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from pathlib import Path

import pytest

from holmes_hpc.emulation.system_calls import join_network
from tests.test_faults import SMALL, Running

_GET_FLAGS, _SET_FLAGS = 0x8913, 0x8914


def take_down(pid: int, interface: str) -> None:
    """Take an interface down in the network namespace of a process."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            join_network(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
                request = struct.pack("16sH14s", interface.encode(), 0, b"")
                flags = struct.unpack("16sH14s", fcntl.ioctl(any_socket.fileno(), _GET_FLAGS, request))[1]
                fcntl.ioctl(any_socket.fileno(), _SET_FLAGS,
                            struct.pack("16sH14s", interface.encode(), flags & ~1, b""))
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.emulated
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to enter the namespace of a rank")
def test_a_link_that_goes_down_in_mid_run_is_named(tmp_path: Path) -> None:
    run = Running(tmp_path, SMALL)
    victim = run.ranks[3]
    try:
        links = json.loads((run.folder / "ranks" / "rank-3.beat").read_text())["links"]
        interface = next(name for name in links if name.startswith("eth"))
        assert links[interface].startswith("up, ")
        take_down(victim["pid"], interface)
        status, stderr = run.finish()
    finally:
        run.process.kill()
    error = json.loads((run.folder / "result.json").read_text())["error"]
    assert status == 1 and "Traceback" not in stderr
    assert f"the interface {interface} of node {victim['node']} is down" in error, error
