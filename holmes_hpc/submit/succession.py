"""The last job of a sweep goes on with the next run where a limit on submitted jobs has room for no other job.

Such a job counts until it has ended, so nobody is left to submit the next one. It is queued once more instead, by the
same number: a link `next-JOB` in the folder of the run that has ended leads to the one that it goes on with, and the
batch script follows it (`script.NEXT_RUN`). The new run's link `before` leads back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from holmes_hpc.runs import RunFolder
from holmes_hpc.submit.commands import SlurmCommandError
from holmes_hpc.submit.job import job_request, link_job, next_link, record
from holmes_hpc.submit.requeue import CancelledError, requeue
from holmes_hpc.submit.script import NEXT_RUN, render_script
from holmes_hpc.submit.snapshot import keep_code

LOG = logging.getLogger(__name__)

BEFORE = "before"
_ANY = Path("/links")


def is_alike(config: Any, other: Any) -> bool:
    """Say whether the job of one run can run the other one: its script is the same but for the folder, and follows."""
    text, wanted = _script(config), _script(other)
    return bool(config.launch.requeue) and text == wanted and NEXT_RUN in text


def take_up(config: Any, folder: RunFolder, ended: RunFolder, job_id: str, sweep: Path) -> bool:
    """Let the job `job_id`, whose run in the folder `ended` has ended, go on with the run in `folder`.

    Returns whether Slurm has queued it again; else nothing is changed, and the reason is said. Raises as `keep_code`.
    """
    keep_code(config, [folder], sweep)
    link, back = next_link(ended, job_id), folder.path / BEFORE
    record(job_request(config, None), folder, job_id, sweep)
    try:
        for path, target in ((back, ended.path), (link, folder.path)):
            path.unlink(missing_ok=True)
            path.symlink_to(target)
        requeue(job_id)
    except (OSError, SlurmCommandError, CancelledError) as error:
        LOG.warning("job %s cannot go on with another run: %s", job_id, error)
        for path in (link, back, folder.job_path):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        link_job(ended, job_id)
        return False
    return True


def places_of(folder: RunFolder) -> Iterator[Path]:
    """Yield the folder of a run, and of those that its job ran before, the latest first."""
    place, seen = folder.path, set[Path]()
    while place not in seen:
        yield place
        seen.add(place)
        with suppress(OSError):
            place = (place / BEFORE).readlink()


def _script(config: Any) -> str:
    return render_script(job_request(config, None, links=_ANY, array="0", of_sweep=True))
