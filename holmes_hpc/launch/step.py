"""A rank inside a Slurm step: `python -m holmes_hpc.launch.step RUN_FOLDER`, started by srun.

Signals are held back before anything else is imported, so that one which comes early is not lost and ends nobody.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback

from holmes_hpc.launch.slurm.stopping import block_signals


def main(arguments: list[str]) -> int:
    """Run one rank and return its exit status."""
    from pathlib import Path

    from holmes_hpc.cluster.slurm.step import read_step
    from holmes_hpc.errors import WRONG, HolmesError
    from holmes_hpc.redaction import RedactingFormatter
    from holmes_hpc.runs import RunFolder, Start
    from holmes_hpc.submit.log_causes import NOT_SEEN

    if len(arguments) != 1:
        sys.stderr.write("usage: python -m holmes_hpc.launch.step RUN_FOLDER; srun starts it in a job's batch script\n")
        return WRONG
    folder = RunFolder(Path(arguments[0]))
    if not folder.path.is_dir():
        node = os.environ.get("SLURMD_NODENAME", "this node")
        sys.stderr.write(f"{NOT_SEEN.format(node=node, folder=folder.path)}\n")
        return 1
    try:
        layout = read_step(os.environ)
    except HolmesError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_status
    _redirect_output(folder.log_path(layout.rank))
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        from holmes_hpc.launch.slurm.rank import be_rank
    except Exception as error:  # a package is missing or broken on this node
        traceback.print_exc()
        Start(folder, layout.name).write_failure(layout.rank, layout.node, error)
        return 1
    return be_rank(folder, layout, supervised=True)


def _redirect_output(path: os.PathLike[str]) -> None:
    """Send what this rank and its libraries write to its log."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


if __name__ == "__main__":
    block_signals()
    status = main(sys.argv[1:])
    from holmes_hpc.launch.rank.leaving import leave_process

    leave_process(status)
