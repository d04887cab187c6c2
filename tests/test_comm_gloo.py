"""A gloo group takes the interface that it was given; the private names of torch are pinned."""

import ctypes
import os
import socket
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from holmes_hpc.comm import gloo
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.errors import NetworkError
from tests.forked import run_ranks

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000
TWO_LABELS = NodeNetworks(
    node="twin", label="ib", interfaces={"local": "lo", "ib": "lo:a", "ethernet": "lo:b"}
)
SECONDS = timedelta(seconds=20)


def test_private_names_of_torch_still_exist():
    options = dist.ProcessGroupGloo._Options()
    for name in ("_timeout", "_threads", "_devices", "global_ranks_in_group", "group_name"):
        assert hasattr(options, name), name
    for name in ("create_device", "_set_sequence_number_for_group", "_set_default_timeout"):
        assert callable(getattr(dist.ProcessGroupGloo, name)), name
    assert callable(dist.ProcessGroup._get_backend)


def test_registering_again_keeps_the_backend():
    gloo.register()
    before = dist.Backend._plugins[gloo.BACKEND_NAME.upper()]
    gloo.register()
    assert dist.Backend._plugins[gloo.BACKEND_NAME.upper()] is before


def test_unknown_interface_is_refused_with_the_valid_ones():
    networks = NodeNetworks(node="node7", label="fast", interfaces={"ib": "nosuch0"})
    with pytest.raises(NetworkError) as caught:
        gloo.open_device("nosuch0", networks, "ib")
    message = str(caught.value)
    assert "'nosuch0'" in message
    assert "node7" in message
    assert "cluster.partitions.fast.fabric_interface" in message
    assert all(name in message for _, name in socket.if_nameindex())


def enter_network_namespace():
    """Give this process a loopback of its own with two labelled addresses; return why not, or None."""
    user = os.getuid()
    flags = CLONE_NEWNET | (CLONE_NEWUSER if user else 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        return f"network namespaces are not allowed: {os.strerror(ctypes.get_errno())}"
    if user:
        # Without a mapping to root the owner of the namespace may not add addresses.
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    lines = "link set lo up\naddr add 10.9.1.1/32 dev lo label lo:a\naddr add 10.9.2.1/32 dev lo label lo:b\n"
    try:
        subprocess.run(["ip", "-batch", "-"], input=lines, text=True, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no addresses in the namespace: {error}"
    return None


def own_addresses():
    """Return the local addresses of this process's established TCP connections, but those of the store."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[len("socket:["):-1])
    found = set()
    for path in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with open(path) as table:
            for line in table.readlines()[1:]:
                fields = line.split()
                if fields[3] == "01" and fields[9] in inodes:
                    address = bytes.fromhex(fields[1].split(":")[0])
                    found.add(".".join(str(byte) for byte in reversed(address[-4:])))
    return found - {"127.0.0.1"}


def addresses_of_groups(given):
    backend = gloo.GlooBackend(TWO_LABELS)
    seen = {}
    world = backend.start_world(given.store, given.rank, given.world_size, "local", SECONDS)
    dist.all_reduce(torch.ones(1), group=world)
    seen["world on lo"] = own_addresses()
    for network in ("ib", "ethernet"):
        before = own_addresses()
        group = backend.new_group((0, 1), "data", network, SECONDS)
        value = torch.full((1,), given.rank + 1.0)
        dist.all_reduce(value, group=group)
        assert value.item() == 3.0
        seen[network] = own_addresses() - before
    return seen


def in_namespace(_):
    reason = enter_network_namespace()
    return reason or run_ranks(2, addresses_of_groups)


@pytest.mark.emulated
def test_each_group_connects_over_its_own_interface():
    (seen,) = run_ranks(1, in_namespace)
    if isinstance(seen, str):
        pytest.skip(seen)
    expected = {"world on lo": set(), "ib": {"10.9.1.1"}, "ethernet": {"10.9.2.1"}}
    assert seen == [expected, expected]


def group_of_others(given):
    backend = gloo.GlooBackend(NodeNetworks(node="n", interfaces={"local": "lo"}))
    backend.start_world(given.store, given.rank, given.world_size, "local", SECONDS)
    # Ranks outside a group need not have its network.
    networks = "local" if given.rank > 0 else "ib"
    group = backend.new_group((2, 1), "data", networks, SECONDS)
    return None if group is None else dist.get_group_rank(group, given.rank)


def test_group_keeps_the_order_of_its_ranks_and_leaves_others_out():
    assert run_ranks(3, group_of_others) == [None, 1, 0]


def policies_of_threads(given):
    """Return by thread name the scheduling policies of a rank's threads, and those after `yield_to_compute`."""
    backend = gloo.GlooBackend(NodeNetworks(node="n", interfaces={"local": "lo"}))
    backend.start_world(given.store, given.rank, given.world_size, "local", SECONDS)
    dist.all_reduce(torch.ones(1))

    def policies():
        found = {}
        for task in Path("/proc/self/task").iterdir():
            name = (task / "comm").read_text().strip()
            found.setdefault(name, set()).add(os.sched_getscheduler(int(task.name)))
        return found

    before = policies()
    backend.yield_to_compute()
    return before, policies(), os.sched_getscheduler(0)


def test_threads_of_gloo_and_no_others_run_in_batches():
    for before, after, own in run_ranks(2, policies_of_threads):
        assert set(gloo.THREAD_NAMES) <= set(before), "this version of gloo names its threads otherwise"
        assert own == os.SCHED_OTHER
        for name, policies in after.items():
            assert policies == ({os.SCHED_BATCH} if name in gloo.THREAD_NAMES else before[name]), name
