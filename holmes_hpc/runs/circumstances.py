"""What has to be said beside a run's speed: whether it was emulated or its ranks only waited, and who else computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holmes_hpc import foreign
from holmes_hpc.runs.files import read_json
from holmes_hpc.runs.folder import RunFolder
from holmes_hpc.runs.result import last_metrics, read_result

TIMED = "emulated, timed"
"""A wind tunnel (`cluster.emulate.compute=timed`): emulated NICs, waits in place of GPUs."""


def circumstances(folder: RunFolder) -> str:
    """Return `emulated, timed`, `emulated`, or nothing of a run for which that is not known to hold."""
    said = [each for each in (read_json(folder.job_path), read_result(folder), last_metrics(folder))
            if isinstance(each, dict)]
    if not any(each.get("emulated") for each in said):
        return ""
    return TIMED if any(each.get("timed") for each in said) or _is_to_be_timed(folder) else "emulated"


def is_timed(folder: RunFolder) -> bool:
    """Whether a run's ranks only waited, and so held no weights."""
    return circumstances(folder) == TIMED


def speed_words(result: Mapping[str, Any] | None, tokens_per_second: float | None) -> str:
    """Return a speed, marked where other programs held cores meanwhile; of a run that has none, why, if that is known.

    `result` is that of result.json, None before the run's end.
    """
    ended = result or {}
    if tokens_per_second is None:
        why = ended.get("no_speed")
        return f"no tokens/s: {why}" if isinstance(why, str) else ""
    return f"{tokens_per_second:,.0f} tokens/s" + (" (busy)" if is_busy(ended) else "")


def is_busy(result: Mapping[str, Any]) -> bool:
    """Whether other programs held cores that a run needed, so that its speed compares with no other."""
    return foreign.number(result.get("others_held_cores")) is not None


def no_weights(folder: RunFolder) -> str:
    """Return why a run of a wind tunnel has no model; "" where it is none."""
    return ("it was a wind tunnel (cluster.emulate.compute=timed), whose ranks hold no weights; name a run with "
            "cluster.emulate.compute=real") if is_timed(folder) else ""


def _is_to_be_timed(folder: RunFolder) -> bool:
    """Return whether its configuration says so: a run that has made no step says it nowhere else."""
    try:
        config = foreign.read_yaml(folder.config_path)
        return bool(config["cluster"]["emulate"]["compute"] == "timed")
    except (foreign.ForeignError, KeyError, TypeError):
        return False
