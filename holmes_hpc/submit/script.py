"""The batch script of a job, rendered from a template."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from holmes_hpc import __version__
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.paths import at_home
from holmes_hpc.quoting import for_shell, for_srun
from holmes_hpc.resources import folder as resource_folder
from holmes_hpc.runs import RunFolder
from holmes_hpc.submit.components import Component
from holmes_hpc.submit.log_causes import BATCH_LOG
from holmes_hpc.submit.options import HEAD, file_name, option_lines, option_name
from holmes_hpc.submit.snapshot import import_path
from holmes_hpc.submit.step_guard import END_SECONDS

TEMPLATE = "job.sh.j2"
STEP_MODULE = "holmes_hpc.launch.step"
GUARD_MODULE = "holmes_hpc.submit.step_guard"
NEXT_RUN = """\
# A sweep's job for which no other one had room went on with the next run.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
while [ -L "$run/next-$job" ]; do
  run=$(readlink "$run/next-$job")
  exec >>"$run/logs/batch.log" 2>&1
done"""


@dataclass(frozen=True)
class JobRequest:
    """Everything that a batch script says.

    `folder` is the run folder of a single job. An array has the folder `links` instead, in which the link `0` leads to
    the run folder of its task 0, and so on; `array` is its `--array`.
    """

    name: str
    components: tuple[Component, ...]
    launch: Any
    """the group `launch` of the configuration"""
    folder: RunFolder | None = None
    links: Path | None = None
    array: str | None = None
    dependency: str | None = None
    code: Path | None = None
    """a copy of the code, from which the ranks run"""
    of_sweep: bool = False
    """whether the job may go on with another run of its sweep (`submit/succession.py`)"""

    @property
    def tasks(self) -> int:
        """The number of ranks."""
        return sum(component.tasks for component in self.components)

    @property
    def run(self) -> str:
        """The run folder, as the shell of the script finds it."""
        if self.folder is not None:
            return for_shell(str(self.folder.path))
        return f'"$(readlink -f {for_shell(str(self.links))}/"$SLURM_ARRAY_TASK_ID")"'

    def head_lines(self) -> list[str]:
        """Return the options of the whole job; those that `launch.sbatch` sets or nulls are taken from there."""
        launch = self.launch
        if self.folder is not None:
            log = file_name(f"{self.folder.path}/{BATCH_LOG}")
        else:
            log = f"{file_name(str(self.links))}/%a/{BATCH_LOG}"
        options: dict[str, Any] = {
            "job-name": self.name,
            "output": log,
            "open-mode": "append",
            "chdir": os.getcwd(),
            "signal": f"{launch.signal}@{launch.signal_seconds}" if launch.signal else None,
            "requeue" if launch.requeue else "no-requeue": True,
            "dependency": self.dependency,
            "array": self.array,
        }
        options |= {option_name(name): value for name, value in launch.sbatch.items() if option_name(name) in HEAD}
        if self.dependency and options["dependency"] and options["dependency"] != self.dependency:
            options["dependency"] = f"{self.dependency},{options['dependency']}"
        return option_lines(options)


def step_command(components: Sequence[Component], srun_args: Sequence[str], program: str) -> str:
    """Return the srun command that starts `program` (words of the shell) in all ranks.

    Components that need different options are joined by colons, where srun wants the program for each; ranks are
    numbered alike in both forms.
    """
    common = ["--kill-on-bad-exit=1", *srun_args]
    if len({tuple(component.step_options()) for component in components}) > 1:
        parts = [[f"--het-group={index}", *component.step_options(), *common]
                 for index, component in enumerate(components)]
        return "srun " + " : ".join(f"{for_srun(part)} {program}" for part in parts)
    groups = ["--het-group=" + ",".join(map(str, range(len(components))))] if len(components) > 1 else []
    options = list(components[0].step_options()) if components else []
    return f"srun {for_srun([*groups, *options, *common])} {program}"


def rank_program(launch: Any, run: str) -> str:
    """Return how a rank is started in the run folder `run` (words of the shell): plainly or in an Apptainer image."""
    program = f"{for_shell(rank_python(launch))} -m {STEP_MODULE} {run}"
    if launch.container is None or launch.container_kind != "apptainer":
        return program
    return f"apptainer exec {for_srun(['--nv', *launch.container_args, _named(launch, 'container')])} {program}"


def rank_python(launch: Any) -> str:
    """Return the Python of the ranks. Raises as `_named` does."""
    return _named(launch, "python") if launch.python else sys.executable if launch.container is None else "python3"


def _named(launch: Any, name: str) -> str:
    """Return the program or image that a setting of `launch` names, from the home folder where it begins with `~`.

    Raises ConfigurationError for one that begins with `-`, which srun or the container's program took for an option.
    """
    text = str(launch[name])
    if text.startswith("-"):
        raise ConfigurationError(f"launch.{name}={text}: it would be taken for an option; write ./{text} for a file of "
                                 "that name, and options into launch.srun_args or launch.container_args")
    return str(at_home(text, f"launch.{name}")) if text.startswith("~") else text


def srun_words(launch: Any) -> list[str]:
    """Return the further arguments of srun: a user's own, and those that start a container by Pyxis."""
    words = list(launch.srun_args)
    if launch.container is not None and launch.container_kind == "pyxis":
        words += [f"--container-image={_named(launch, 'container')}", *launch.container_args]
    return words


def render_script(request: JobRequest) -> str:
    """Return the text of the batch script.

    `launch.templates` is searched before the templates that ship with the package. Raises ConfigurationError for a
    template that is missing or asks for an unknown value.
    """
    launch = request.launch
    searched = [str(at_home(launch.templates, "launch.templates"))] if launch.templates else []
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*searched, str(resource_folder("sbatch_templates"))]),
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
    )
    environment.filters["quote"] = for_shell
    program = rank_program(launch, '"$run"')
    python = for_shell(sys.executable)
    guard = f'{python} -m {GUARD_MODULE} "$run" $$ {END_SECONDS:g} &'
    try:
        return environment.get_template(TEMPLATE).render(
            head=request.head_lines(), components=request.components, run=request.run, setup=list(launch.setup),
            requeue=launch.requeue, python=python, python_path=import_path(request.code),
            safe_path=request.code is not None,
            guard=guard, next_run=NEXT_RUN if request.of_sweep else "",
            step=step_command(request.components, srun_words(launch), program),
            launch=launch, job_name=request.name, version=__version__,
        )
    except jinja2.TemplateError as error:
        place = f"launch.templates={launch.templates}: " if launch.templates else ""
        raise ConfigurationError(f"{place}{TEMPLATE}: {error}; docs/slurm.md lists what a template is given") from error
