"""The Linux calls that Python 3.11 lacks: unshare, setns, mount and prctl, through the C library."""

from __future__ import annotations

import ctypes
import os
import signal
from functools import cache
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAP_SETPCAP = 8
_CAPABILITY_VERSION = 0x20080522
"""_LINUX_CAPABILITY_VERSION_3 of linux/capability.h: two words of 32 bits for each set."""
FILE_CAPABILITIES = {"CAP_DAC_OVERRIDE": 1, "CAP_DAC_READ_SEARCH": 2, "CAP_FOWNER": 3}
"""With these root reads and writes files of others, such as those of a folder that a container mounts."""
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_PRIVATE = 2, 4, 8, 1 << 14, 1 << 18


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), call)


def _prctl(option: int, argument: int | bytes) -> None:
    value = argument if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    zero = ctypes.c_ulong(0)
    _check(_libc().prctl(ctypes.c_int(option), value, zero, zero, zero), f"prctl {option}")


def unshare(flags: int) -> None:
    """Move the caller (its children, for CLONE_NEWPID) into new namespaces.

    With CLONE_NEWUSER the caller must have one thread, which a process just forked has.
    """
    _check(_libc().unshare(ctypes.c_int(flags)), "unshare")


def join_network(descriptor: int) -> None:
    """Move the calling thread into the network namespace that `descriptor` holds open."""
    _check(_libc().setns(ctypes.c_int(descriptor), ctypes.c_int(CLONE_NEWNET)), "setns")


def own_network() -> int:
    """Return a descriptor of the network namespace that the caller stands in."""
    return os.open("/proc/self/ns/net", os.O_RDONLY)


def new_network() -> int:
    """Make a network namespace and return a descriptor that keeps it; the caller stays where it was."""
    own = own_network()
    try:
        unshare(CLONE_NEWNET)
        try:
            return own_network()
        finally:
            join_network(own)
    finally:
        os.close(own)


def mount_own_proc() -> None:
    """Mount the proc of the caller's PID namespace on /proc, seen in this mount namespace only."""
    libc = _libc()
    _check(libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None), "mount / private")
    flags = ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _check(libc.mount(b"proc", b"/proc", b"proc", flags, None), "mount /proc")


def map_to_root(uid: int, gid: int) -> None:
    """Make the user `uid` of the parent user namespace root in the caller's new one."""
    # A process whose credentials changed does not own its /proc files until it is dumpable again.
    _prctl(_PR_SET_DUMPABLE, 1)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1")


def drop_privileges() -> None:
    """Give up every capability but those for files, and for ever what set-user-ID programs would give.

    The caller must have one thread. In a user namespace nothing is given up but what root of it may do there.
    """
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    kept = sum(1 << number for number in FILE_CAPABILITIES.values())
    header, data = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _check(_libc().capget(header, data), "capget")
    if data[0] >> _CAP_SETPCAP & 1:
        for number in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
            if not kept >> number & 1:
                _prctl(_PR_CAPBSET_DROP, number)
    # effective, permitted and inheritable of the lower 32 capabilities, then of the upper ones
    ours = (ctypes.c_uint32 * 6)(data[0] & kept, data[1] & kept, 0, 0, 0, 0)
    _check(_libc().capset(header, ours), "capset")


def die_with_parent() -> None:
    """Have the kernel send SIGKILL to the caller when the thread that forked it ends.

    A change of credentials or a new user namespace clears it, and a fork does not pass it on: set it anew
    there.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every orphaned descendant (child subreaper)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """Set the caller's name as `ps -o comm` and `top` show it; the kernel keeps 15 bytes."""
    _prctl(_PR_SET_NAME, name.encode())
