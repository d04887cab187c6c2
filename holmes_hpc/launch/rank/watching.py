"""Runs the training of a rank under its watchdog, and turns a hang into an error that names who caused it."""

from __future__ import annotations

import errno
import json
import os
import resource
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from holmes_hpc.comm.groups import Communicator
from holmes_hpc.engine.watchdog.hang import Hang
from holmes_hpc.engine.watchdog.watch import Watch
from holmes_hpc.errors import HangError, HolmesError, NetworkError
from holmes_hpc.launch.rank.ports import ports_of
from holmes_hpc.launch.rank.settings import RankSettings
from holmes_hpc.redaction import redact


@contextmanager
def watched(communicator: Communicator, settings: RankSettings) -> Iterator[None]:
    """Watch the body. Raises HangError in place of a NetworkError after a wait of train.timeout_seconds.

    Where the rank waits on although the time is over, the process ends with status 1 and the same error in its file.
    """
    def end(hang: Hang) -> None:
        error = _error_of(hang)
        try:
            report_error(settings, error)
            sys.stderr.write(f"{redact(str(error))}\n")
            sys.stderr.flush()
        finally:
            os._exit(error.exit_status)  # nobody else would end it, and its log may lie on a full disk

    interfaces = dict.fromkeys(name for network, name in settings.interfaces.items() if network != "local")
    watch = Watch(communicator, settings.folder, settings.training_seconds, end, interfaces,
                  ports_of(settings))
    watch.start()
    try:
        yield
    except NetworkError as error:
        hang = watch.explain_failure()
        if hang is not None:
            raise _error_of(hang) from error
        raise
    finally:
        watch.leave()  # from here on others do not take this rank for the cause


def _error_of(hang: Hang) -> HangError:
    error = HangError(hang.message)
    error.of_suspension = hang.of_suspension
    return error


def report_error(settings: RankSettings, error: Exception) -> None:
    """Leave in the run folder what went wrong on this rank, and tell its parent where it has one that listens."""
    report = {
        "type": type(error).__name__,
        "message": redact(_with_remedy(str(error))),
        "ours": isinstance(error, HolmesError),
        "names_rank": getattr(error, "names_rank", False),
        **({"of_suspension": True} if getattr(error, "of_suspension", False) else {}),
        "traceback": redact("".join(traceback.format_exception(error))),
    }
    settings.tell(report)
    settings.spare.release()
    with suppress(OSError):  # no descriptor, no space, no folder any more: the parent knows all the same
        settings.folder.rank_error_path(settings.rank).write_text(json.dumps(report, indent=2))


def _with_remedy(message: str) -> str:
    if os.strerror(errno.EMFILE) not in message:
        return message
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (f"a process may open {soft} files here, which are too few: raise that by `ulimit -Hn 4096` before the "
            f"start, on Slurm by the site's limits; what failed: {message}")
