"""Where a run goes: `launch.mode`."""

from __future__ import annotations

from dataclasses import dataclass

from holmes_hpc.emulation.namespaces import namespaces_available
from holmes_hpc.errors import LaunchImpossibleError


@dataclass(frozen=True)
class Decision:
    """The mode (`emulated` or `local`) and a line that says why."""

    mode: str
    reason: str


def decide_mode(wanted: str) -> Decision:
    """Return where a run goes when `launch.mode` is `wanted`.

    `auto` takes the emulated cluster where this machine allows namespaces, else plain local processes.
    Raises LaunchImpossibleError when a forced mode cannot work here.
    """
    if wanted == "slurm":
        raise LaunchImpossibleError(
            "launch.mode=slurm: this version of holmes_hpc does not submit to Slurm yet; "
            "use launch.mode=auto, emulated or local"
        )
    if wanted == "local":
        return Decision("local", "plain local processes, as launch.mode=local says; NICs are not emulated")
    available, reason = namespaces_available()
    if available:
        return Decision("emulated", "emulated cluster on this machine (network namespaces)")
    if wanted == "emulated":
        raise LaunchImpossibleError(f"launch.mode=emulated is impossible here: {reason}; or use launch.mode=local")
    return Decision("local", f"plain local processes, NICs are not emulated: {reason}")
