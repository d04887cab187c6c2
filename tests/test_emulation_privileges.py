"""A rank of the emulated cluster has none of the rights with which the cluster was made."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc.emulation import system_calls
from holmes_hpc.emulation.namespaces import namespaces_available
from holmes_hpc.emulation.network import EmulatedInterface, EmulatedNetwork, EmulatedNode
from holmes_hpc.emulation.world import start_world

pytestmark = pytest.mark.emulated

FILES = sum(1 << number for number in system_calls.FILE_CAPABILITIES.values())


def status() -> dict[str, int]:
    """Return the sets of capabilities of this process, and whether it can get new ones."""
    text = Path("/proc/self/status").read_text()
    return {name: int(value, 16) for name, value in re.findall(r"^(Cap\w+|NoNewPrivs):\s*([0-9a-f]+)", text, re.M)}


def refused(call: Any) -> bool:
    try:
        call()
    except PermissionError:
        return True
    return False


def what_a_rank_may() -> dict[str, Any]:
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    return {"status": status(), "namespace": refused(lambda: system_calls.unshare(system_calls.CLONE_NEWNET)),
            "network": refused(lambda: system_calls.join_network(own)), "mount": refused(system_calls.mount_own_proc)}


def network() -> EmulatedNetwork:
    node = EmulatedNode("n/0", "n-0", (EmulatedInterface("eth0", "ethernet", "10.9.0.1", 1.0, "bridge-eth", 1500),))
    return EmulatedNetwork((node,))


def test_a_rank_can_change_no_network_and_mount_nothing(tmp_path: Path) -> None:
    available, reason = namespaces_available()
    if not available:
        pytest.skip(reason)

    def body(context: Any) -> int:
        def rank() -> int:
            context.send(what_a_rank_may())
            (tmp_path / "written").write_text("a rank goes on writing files")
            return 0

        context.fork_rank(0, "n-0", rank, tmp_path / "log")
        return int(context.wait()[1])

    world = start_world(network(), body)
    assert world.wait(30) == 0, (tmp_path / "log").read_text()
    [event] = world.events()
    assert event["namespace"] and event["network"] and event["mount"]
    found = event["status"]
    assert found["NoNewPrivs"] == 1
    for name in ("CapEff", "CapPrm", "CapBnd"):
        assert not found[name] & ~FILES, name
    assert found["CapInh"] == found["CapAmb"] == 0


def test_dropping_twice_or_without_any_does_no_harm() -> None:
    pid = os.fork()
    if pid == 0:
        try:
            system_calls.drop_privileges()
            system_calls.drop_privileges()
            os._exit(0 if status()["NoNewPrivs"] else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
