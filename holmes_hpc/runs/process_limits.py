"""What the limits of a process (`ulimit`) have to do with its end; login nodes have such."""

from __future__ import annotations

import errno
import resource

_KILLED = " (if nobody killed it, the kernel may have: out of memory)"


def killed_words() -> str:
    """Return what may be behind a SIGKILL that nobody sent, to be put behind the fact.

    The limits are those of this process, which those that it started have inherited.
    """
    seconds = _limit(resource.RLIMIT_CPU, hard=True)
    if seconds is None:
        return _KILLED
    return (f" (if nobody killed it, the kernel did: it ends a process after {seconds} s of CPU time here, "
            "`ulimit -t`, or for want of memory; where no limit is, as in a job, it may go on)")


def cpu_words() -> str:
    """Return what is behind a SIGXCPU."""
    seconds = _limit(resource.RLIMIT_CPU, hard=False)
    which = "" if seconds is None else f", {seconds} s here"
    return f" (its limit of CPU time, `ulimit -t`{which}: raise it, or train where there is none, as in a job)"


def file_size_words(error: OSError) -> str:
    """Return the cause of an error of writing that a limit is to blame for, and what to do; "" for another error."""
    if error.errno != errno.EFBIG:
        return ""
    size = _limit(resource.RLIMIT_FSIZE, hard=False)
    if size is None:
        return "the file system takes no files of this size; choose another one"
    return f"a process may write files of {size} bytes at most here (`ulimit -f`); raise that limit"


def _limit(which: int, *, hard: bool) -> int | None:
    limit = resource.getrlimit(which)[hard]
    return None if limit == resource.RLIM_INFINITY else limit
