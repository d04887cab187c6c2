"""How many files a process may open here: ranks connect to each other, and each connection is one."""

from __future__ import annotations

import resource

from holmes_hpc.errors import ConfigurationError

LEAST = 64
"""Of one rank alone; below it not even the ranks' store can take connections."""
_ENOUGH = 65536


def check_descriptors() -> None:
    """Raise ConfigurationError where a process may open too few files for any rank, however far it raises that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < LEAST:
        raise ConfigurationError(f"a process may open {hard} files here (the hard limit, `ulimit -Hn`), and a rank "
                                 f"needs {LEAST} at least, more with more ranks; raise it before the start, on Slurm "
                                 "by the site's limits (`ulimit -Hn 4096` where you may)")


def take_descriptors() -> None:
    """Let this process open as many files as its hard limit allows. Raises ConfigurationError as the check does."""
    check_descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
