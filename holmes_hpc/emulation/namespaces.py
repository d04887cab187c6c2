"""Which namespaces this user may make on this machine, found out by making them in a child process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from holmes_hpc.emulation import system_calls

_PROBE_LINKS = """\
link set lo up
link add name bridge-probe type bridge forward_delay 0
link add name probe0 type veth peer name probe1
link set probe1 master bridge-probe up
"""
_PROBE_SHAPING = "qdisc replace dev probe0 root tbf rate 200mbit burst 64kb latency 200ms\n"
_PROBE_TIMEOUT_SECONDS = 20


@dataclass(frozen=True)
class Isolation:
    """The namespaces that an emulated cluster gets beside its network namespaces."""

    user: bool
    """a user namespace, in which the ordinary user is root"""
    pid: bool
    """a PID namespace (with its own mount namespace for /proc)"""

    @property
    def flags(self) -> int:
        """The flags of unshare for these namespaces and a network namespace."""
        flags = system_calls.CLONE_NEWNET
        if self.user:
            flags |= system_calls.CLONE_NEWUSER
        if self.pid:
            flags |= system_calls.CLONE_NEWPID | system_calls.CLONE_NEWNS
        return flags

    def enter(self) -> None:
        """Move the caller into these namespaces; a PID namespace holds only what it forks afterwards.

        Raises OSError where the kernel refuses.
        """
        uid, gid = os.geteuid(), os.getegid()
        system_calls.unshare(self.flags)
        if self.user:
            system_calls.map_to_root(uid, gid)


def find_program(name: str) -> str | None:
    """Return the path of `ip` or `tc`, which an ordinary user's PATH often leaves out, or None."""
    return shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin")


def run_program(name: str, arguments: list[str], text: str, before: Callable[[], None] | None = None) -> None:
    """Run `ip` or `tc` with `text` on its standard input, after `before` in the child.

    Raises OSError with what the program said where it fails.
    """
    path = find_program(name)
    if path is None:
        raise FileNotFoundError(f"the program `{name}` is not installed")
    done = subprocess.run([path, *arguments], input=text, text=True, capture_output=True, check=False,
                          preexec_fn=before)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip() or f"exit status {done.returncode}"
        raise OSError(f"{name}: {said}")


def namespaces_available() -> tuple[bool, str]:
    """Say whether an emulated cluster can be made here, and if not, why and what helps."""
    isolation, reason = find_isolation()
    return isolation is not None, reason


def find_isolation() -> tuple[Isolation | None, str]:
    """Return the best isolation that works here, or None, and a sentence that says why.

    Root goes without a user namespace where it can; whoever may not mount /proc goes without a PID namespace.
    Each attempt builds a shaped link in a child process, which takes about 20 ms and leaves nothing.
    """
    missing = [name for name in ("ip", "tc") if find_program(name) is None]
    if missing:
        names = " and ".join(f"`{name}`" for name in missing)
        return None, (f"the program {names} is missing; install iproute2 (Debian, Ubuntu: apt install "
                      f"iproute2; RHEL, Rocky: dnf install iproute iproute-tc)")
    refusals = []
    for user in ([False, True] if os.geteuid() == 0 else [True]):
        for pid in (True, False):
            refusal = _try_in_child(Isolation(user=user, pid=pid))
            if refusal is None:
                return Isolation(user=user, pid=pid), _success(user, pid)
            refusals.append(refusal)
    return None, (f"the kernel refuses network namespaces ({refusals[-1]}); allow them with `sysctl -w "
                  f"user.max_user_namespaces=15000` and, where they exist, "
                  f"`kernel.unprivileged_userns_clone=1` and "
                  f"`kernel.apparmor_restrict_unprivileged_userns=0`, run as root, or give the container "
                  f"CAP_SYS_ADMIN and CAP_NET_ADMIN")


def _success(user: bool, pid: bool) -> str:
    who = "in a user namespace" if user else "as root"
    without = "" if pid else ", without a PID namespace (/proc cannot be mounted)"
    return f"network namespaces work {who}{without}"


def _try_in_child(isolation: Isolation) -> str | None:
    """Build a shaped link under `isolation` in a child; return None, or what was refused."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            os.write(writer, _attempt(isolation).encode()[:2000])
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        said = stream.read().decode(errors="replace")
    os.waitpid(child, 0)
    if said == "done":
        return None
    return said or "the attempt was killed"


def _attempt(isolation: Isolation) -> str:
    """Enter the namespaces, fork, and build a link there; return "done" or what was refused."""
    system_calls.die_with_parent()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_PROBE_TIMEOUT_SECONDS)
    try:
        isolation.enter()
    except OSError as error:
        return f"unshare: {error.strerror}"
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            system_calls.die_with_parent()
            os.write(writer, _build_probe(isolation).encode()[:2000])
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    return os.read(reader, 2000).decode(errors="replace")


def _build_probe(isolation: Isolation) -> str:
    try:
        if isolation.pid:
            system_calls.mount_own_proc()
        os.close(system_calls.new_network())
        run_program("ip", ["-batch", "-"], _PROBE_LINKS)
        run_program("tc", ["-batch", "-"], _PROBE_SHAPING)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return "done"
