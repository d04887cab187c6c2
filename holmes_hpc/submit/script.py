"""The batch script of a job, rendered from a template."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from holmes_hpc import __version__
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.resources import folder as resource_folder
from holmes_hpc.runs import RunFolder
from holmes_hpc.submit.components import Component

TEMPLATE = "job.sh.j2"
STEP_MODULE = "holmes_hpc.launch.step"


@dataclass(frozen=True)
class JobRequest:
    """Everything that a batch script says."""

    name: str
    folder: RunFolder
    components: tuple[Component, ...]
    launch: Any
    """the group `launch` of the configuration"""

    @property
    def tasks(self) -> int:
        """The number of ranks."""
        return sum(component.tasks for component in self.components)


def step_command(components: tuple[Component, ...], srun_args: list[str]) -> list[str]:
    """Return the srun command that starts all ranks, up to the program.

    `--cpus-per-task` is repeated here: from Slurm 22.05 to 23.02 srun did not take it from the job.
    """
    words = ["srun"]
    if len(components) > 1:
        words.append("--het-group=" + ",".join(str(index) for index in range(len(components))))
    cpus = {component.cpus_per_task for component in components}
    if len(cpus) == 1 and None not in cpus:
        words.append(f"--cpus-per-task={cpus.pop()}")
    return [*words, "--kill-on-bad-exit=1", *srun_args]


def render_script(request: JobRequest) -> str:
    """Return the text of the batch script.

    `launch.templates` is searched before the templates that ship with the package. Raises ConfigurationError for a
    template that is missing or asks for an unknown value.
    """
    launch = request.launch
    searched = [str(Path(launch.templates).expanduser())] if launch.templates else []
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*searched, str(resource_folder("sbatch_templates"))]),
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )
    environment.filters["quote"] = shlex.quote
    python = shlex.quote(sys.executable)
    try:
        return environment.get_template(TEMPLATE).render(
            job_name=request.name, run_folder=str(request.folder.path),
            batch_log=str(request.folder.logs / "batch.log"),
            components=request.components, signal=launch.signal, signal_seconds=launch.signal_seconds,
            requeue=launch.requeue, setup=list(launch.setup), python=python, version=__version__,
            step=shlex.join(step_command(request.components, list(launch.srun_args))),
            program=container_prefix(launch.container, python) + f"-m {STEP_MODULE}",
        )
    except jinja2.TemplateError as error:
        raise ConfigurationError(f"launch.templates={launch.templates}: {TEMPLATE}: {error}") from error


def container_prefix(container: str | None, python: str) -> str:
    """Return how the program's Python is started: plainly, or in an Apptainer image.

    With Pyxis the image is an option of srun: `launch.srun_args=[--container-image=IMAGE]`.
    """
    return f"{python} " if container is None else f"apptainer exec --nv {shlex.quote(container)} python "
