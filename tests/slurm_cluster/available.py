"""Whether a real Slurm can be started here, and if not, why and what helps."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from holmes_hpc.emulation.namespaces import find_isolation
from tests.slurm_cluster.groups import no_groups
from tests.slurm_cluster.settings import ClusterSettings

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "munged", "nsenter", "setpriv")
_ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd")


def unavailable_reason(settings: ClusterSettings) -> str | None:
    """Return why this cluster cannot be started here, with the remedy, or None when it can."""
    if os.geteuid() != 0:
        return "a real Slurm needs root (slurmd changes users): run the tests as root, in a container for instance"
    if settings.tree is not None and not (settings.tree / "usr/sbin/slurmctld").exists():
        return f"no Slurm tree at {settings.tree}: make it with .ci/make_slurm_tree.sh"
    wanted = _PROGRAMS + (_ACCOUNTING_PROGRAMS if settings.accounting else ())
    missing = [name for name in wanted if not _installed(name, settings.tree)]
    if missing:
        return f"{', '.join(missing)} not installed: run .ci/install_slurm.sh"
    isolation, reason = find_isolation()
    if isolation is None or isolation.user or not isolation.pid:
        return f"a real Slurm needs network and PID namespaces of root's own: {reason}"
    return no_groups() if settings.cgroups else None


def _installed(name: str, tree: Path | None) -> bool:
    if tree is None:
        return shutil.which(name, path=_PATH) is not None
    return any(os.path.lexists(f"{tree}{folder}/{name}") for folder in _PATH.split(":"))
