"""What the log of a batch script tells, above all of ranks that never started."""

from __future__ import annotations

import re

from holmes_hpc.foreign import read_end
from holmes_hpc.runs import RunFolder

BATCH_LOG = "logs/batch.log"
LOG_LINES = 15
_LONGEST_LINE = 2000
_MOST_BYTES = 1 << 20
"""Of a log its end is read: ranks may have written more than there is memory."""
END_OF_START = "holmes_hpc: srun ended with"
"""How the batch script's last line of a start begins; the log of a requeued job holds those before too."""
NOT_SEEN = ("node {node} does not see the run folder {folder}: choose a place on a file system that all nodes share by "
            "run.folder=PATH")

_PYTHON = "a Python with holmes_hpc that all nodes see, such as a virtual environment on a shared file system"

_MEMORY = re.compile(r"Detected [0-9]+ oom[-_]kill event[^.\n]{0,200}|exceeded memory limit \([^)\n]{0,200}\)"
                     r"|Exceeded (?:job|step) memory limit|(?<!\S)\S{1,200}: tasks? [0-9,-]+: Out Of Memory",
                     re.IGNORECASE)
"""What Slurm says where it, or the kernel for it, ended processes that used more memory than their job has."""
MORE_MEMORY = ("ask for more by +launch.sbatch.mem=64G, or by cluster.partitions.<label>.sbatch.mem, or lower "
               "parallel.micro_batch_size")

_CAUSES = (
    (r"execve\(\): (?P<what>apptainer|singularity): (?P<why>.+)",
     "the ranks' container could not be started: {what}: {why}; load it by launch.setup, or set launch.container=null"),
    (r"execve\(\): (?P<what>.+?): (?P<why>No such file or directory|Permission denied|.*not found)",
     f"the nodes cannot start the ranks' Python {{what}} ({{why}}): set launch.python to {_PYTHON}"),
    (r": line [0-9]+: (?P<what>/\S*python\S*): (?P<why>No such file or directory|Permission denied)",
     f"the nodes cannot start the Python {{what}} that submitted this job ({{why}}): submit with {_PYTHON}"),
    (r"No module named '?(?P<what>holmes_hpc)[\w.]*'?(?P<why>)",
     f"the ranks' Python does not find {{what}}: set launch.python to {_PYTHON}"),
    (r"(?P<what>node \S+ does not see the run folder .*)(?P<why>)", "{what}"),
    (r"(?P<what>)(?P<why>Job steps that span multiple components of a heterogeneous job are not currently supported)",
     "this site forbids steps over the components of a job (disable_hetjob_steps: {why}): take one partition that "
     "holds all nodes, with a constraint for each label and cluster.shape=features, or ask the site to allow it"),
    (r"error: Unable to create step for job [0-9+]+: (?P<why>.+)(?P<what>)",
     "srun could not start the ranks: {why}; look at the options of launch.srun_args and launch.sbatch"),
    (r"srun: (?P<what>)(?P<why>unrecognized option .*|error: .*[Ii]nvalid .*)",
     "srun could not start the ranks: {why}; correct launch.srun_args"),
)


def memory_in_log(text: str) -> str | None:
    """Return that processes used more memory than their job was given, where a batch script's log tells so."""
    said = _MEMORY.search(text)
    return said and f"it used more memory than its job has on a node (Slurm: {said[0].strip()}); {MORE_MEMORY}"


def cause_in_log(text: str) -> str | None:
    """Return why ranks never started, with the setting that helps, where the log of their batch script tells."""
    if (memory := memory_in_log(text)) is not None:
        return f"the ranks were killed: {memory}"
    for pattern, words in _CAUSES:
        match = re.search(pattern, text)
        if match:
            return words.format(what=match["what"].strip(), why=match["why"].strip())
    return None


def newest_text(folder: RunFolder, log: str = BATCH_LOG) -> str:
    """Return what a log of a run folder holds of its newest start; nothing where there is none."""
    try:
        text = _shortened(read_end(folder.path / log, _MOST_BYTES))
    except OSError:
        return ""
    return text.rpartition(END_OF_START)[2]


def log_tail(folder: RunFolder, log: str = BATCH_LOG) -> str:
    """Return the last lines of a log of a run folder, to be put behind a message."""
    path = folder.path / log
    try:
        shown = _shortened(read_end(path, _MOST_BYTES)).splitlines()[-LOG_LINES:]
    except OSError:
        return f"; see {folder.logs}"
    return f"; {path} ends with:\n" + "\n".join(shown)


def _shortened(text: str) -> str:
    """Return a text whose long lines are cut: patterns would take hours for a megabyte without a blank."""
    return "\n".join(line[:_LONGEST_LINE] for line in text.splitlines())
