"""The process in which `holmes_hpc.train` of a script or notebook runs the command.

It reads the configuration from its standard input, and writes how the run ended as JSON for the script: `status` (the
exit status of the command), `folder`, or `error` (a class of holmes_hpc.errors) and `message`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from holmes_hpc.config.compose import register
from holmes_hpc.config.plugins import load_plugins
from holmes_hpc.emulation.system_calls import die_with_parent
from holmes_hpc.errors import FAILED, HolmesError
from holmes_hpc.front import logging_to_stderr
from holmes_hpc.runs.files import write_json_atomic


def main(arguments: Sequence[str]) -> int:
    """Run the command for the process whose pid is the first argument; the second is the file of the answer."""
    parent, answer_path = int(arguments[0]), Path(arguments[1])
    die_with_parent()
    if os.getppid() != parent:
        return FAILED
    from holmes_hpc.launch.follow.console import lasting_output

    text = sys.stdin.read()
    with logging_to_stderr("train"), lasting_output():
        answer = _answer(text)
    write_json_atomic(answer_path, answer)
    return 0


def _answer(text: str) -> dict[str, Any]:
    from holmes_hpc.launch.train import run

    register()
    config = OmegaConf.create(text)
    try:
        load_plugins(config)
        status, folder = run(config)
    except HolmesError as error:
        return {"error": type(error).__name__, "message": str(error)}
    except SystemExit as end:
        return {"status": int(end.code or 0), "folder": None}
    except KeyboardInterrupt:
        return {"status": FAILED, "folder": None}
    return {"status": status, "folder": None if folder is None else str(folder.path)}

