"""The end of a process that was a rank."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn


def leave_process(status: int) -> NoReturn:
    """End this process at once with `status`, once what it wrote is out.

    Nothing is left to do, and threads of torch's libraries that are still about while Python takes its modules down
    can hold the process or abort it (`terminate called without an active exception`), which would turn a finished
    run into a failed one.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # whoever read it may have gone
            stream.flush()
    os._exit(status)
