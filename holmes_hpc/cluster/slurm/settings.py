"""The cluster's own settings (`scontrol show config`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from holmes_hpc.cluster.slurm.records import reads

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


@reads("the output of scontrol show config")
def read_settings(text: str) -> SlurmSettings:
    """Return the settings of `scontrol show config`; its headings and empty lines are skipped."""
    pairs = (line.partition("=") for line in text.splitlines())
    return SlurmSettings({key.strip(): value.strip() for key, equals, value in pairs if equals and key.strip()})


def _number(text: str | None, default: int) -> int:
    match = re.match(r"[0-9]+", text or "")
    return int(match[0]) if match else default
