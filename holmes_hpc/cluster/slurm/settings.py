"""The cluster's own settings (`scontrol show config`) and its release, with what the releases do differently."""

from __future__ import annotations

import re
from dataclasses import dataclass

from holmes_hpc.cluster.slurm.records import SlurmOutputError

# Slurm's own defaults, for controllers that do not say.
DEFAULT_MAX_ARRAY_SIZE = 1001
DEFAULT_KILL_WAIT_SECONDS = 30


@dataclass(frozen=True)
class SlurmSettings:
    """What `scontrol show config` says, and what of it matters here."""

    values: dict[str, str]

    @property
    def cluster(self) -> str | None:
        """The cluster's name."""
        return self.values.get("ClusterName")

    @property
    def max_array_size(self) -> int:
        """One more than the largest index of an array job."""
        return _number(self.values.get("MaxArraySize"), DEFAULT_MAX_ARRAY_SIZE)

    @property
    def longest_array(self) -> int:
        """How many tasks an array may have, with indices from 0 on; 0 where arrays are not allowed."""
        match = re.search(r"max_array_tasks=([0-9]+)", self.values.get("SchedulerParameters", ""))
        return min(self.max_array_size, int(match[1])) if match else self.max_array_size

    @property
    def kill_wait_seconds(self) -> int:
        """Between SIGTERM and SIGKILL at a job's end."""
        return _number(self.values.get("KillWait"), DEFAULT_KILL_WAIT_SECONDS)

    @property
    def accounting(self) -> bool:
        """Whether `sacct` knows jobs."""
        return self.values.get("AccountingStorageType", "accounting_storage/none").endswith("/slurmdbd")

    @property
    def requeues(self) -> bool:
        """Whether jobs may be requeued where their script does not say."""
        return self.values.get("JobRequeue", "1") == "1"

    @property
    def preempted_jobs_are_requeued(self) -> bool:
        """Whether a job that is preempted goes back into the queue; elsewhere it is cancelled or stopped."""
        return "REQUEUE" in self.values.get("PreemptMode", "").upper().split(",")

    @property
    def release(self) -> Release | None:
        """The controller's release."""
        text = self.values.get("SLURM_VERSION")
        return read_release(text) if text else None


def read_settings(text: str) -> SlurmSettings:
    """Return the settings of `scontrol show config`; its headings and empty lines are skipped."""
    pairs = (line.partition("=") for line in text.splitlines())
    return SlurmSettings({key.strip(): value.strip() for key, equals, value in pairs if equals and key.strip()})


@dataclass(frozen=True, order=True)
class Release:
    """A release of Slurm, such as 24.11; each property names a change between releases that matters here."""

    year: int
    month: int

    def __str__(self) -> str:
        return f"{self.year}.{self.month:02d}"

    @property
    def srun_takes_over_cpus_per_task(self) -> bool:
        """Whether srun heeds the `--cpus-per-task` of its job; 22.05 to 23.02 do not: say it to srun as well."""
        return not Release(22, 5) <= self < Release(23, 11)

    @property
    def hostlist_suffixes(self) -> bool:
        """Whether `scontrol show hostnames` understands text after a bracket (`gpu[1-2]-ib`)."""
        return self >= Release(23, 11)

    @property
    def several_topologies(self) -> bool:
        """Whether topology.yaml may describe several topologies."""
        return self >= Release(25, 5)


def read_release(text: str) -> Release:
    """Return the release in `slurm-wlm 22.05.8`, `slurm 24.11.5` or `22.05`. Raises SlurmOutputError for none."""
    match = re.search(r"(?<![0-9.])([0-9]{2})\.([0-9]{2})(?![0-9])", text)
    if match is None:
        raise SlurmOutputError(f"{text!r} names no release of Slurm; expected is a text such as 'slurm 24.11.5'")
    return Release(int(match[1]), int(match[2]))


def _number(text: str | None, default: int) -> int:
    match = re.match(r"[0-9]+", text or "")
    return int(match[0]) if match else default
