"""The row of a step of the wind tunnel: what was measured, as it would be on the cluster, or why nothing is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holmes_hpc.values import Plan
from holmes_hpc.values.timed import TimedPrices
from holmes_hpc.words import seconds_words

MOST_LATE_SHARE = 0.02
"""A rank may wake up so much of a step too late, once; ..."""
MOST_LATE_MEAN_SHARE = 0.001
"""... and so much in the mean."""
MOST_BYTES_SHARE = 0.05
"""The bytes of a network may differ by so much from the plan's."""

_COMPUTED = ("loss", "grad_norm", "lr", "memory_gib")
_FIGURES = ("step_seconds", "tokens_per_second", "samples_per_second", "tflops_per_gpu", "mfu", "exposed_comm_seconds",
            "bubble_fraction")


def timed_row(row: Mapping[str, Any], worst: float, mean: float, plan: Plan, timed: TimedPrices) -> dict[str, Any]:
    """Return a step's row without what nobody computed, and without figures where they would not be valid.

    `row` has seconds of the cluster, and bytes as they were sent; ranks woke up so late, at worst and in the mean, in
    seconds of this machine.
    """
    sent = {name: None if row[name] is None else round(row[name] * timed.scale)
            for name in ("bytes_ethernet", "bytes_fabric")}
    why = _why_not_valid(worst, mean, row["step_seconds"] * timed.dilation, sent, plan, timed)
    if row["step"] == 1:
        why = "the first step of a run warms up"
    return {
        **row, **sent, **dict.fromkeys(_COMPUTED), **(dict.fromkeys(_FIGURES) if why else {}),
        "timed": True, "late_worst_seconds": round(worst, 6), "late_mean_seconds": round(mean, 6),
        "dilation": timed.dilation, "scale": timed.scale, **({"not_valid": why} if why else {}),
    }


def _why_not_valid(worst: float, mean: float, step_seconds: float, sent: Mapping[str, int | None], plan: Plan,
                   timed: TimedPrices) -> str:
    """Return why a step's figures say nothing, with the setting that helps; "" where they do."""
    if worst > MOST_LATE_SHARE * step_seconds or mean > MOST_LATE_MEAN_SHARE * step_seconds:
        return (f"ranks woke up to {seconds_words(worst)} too late, {seconds_words(mean)} in the mean, in a step of "
                f"{seconds_words(step_seconds)} here (at most {MOST_LATE_SHARE:.0%} and {MOST_LATE_MEAN_SHARE:.1%} of "
                "it): this machine did not keep up; raise cluster.emulate.dilation "
                f"(now {timed.dilation:.3g}) or parallel.bucket_mib")
    planned = {"bytes_ethernet": 0.0, "bytes_fabric": 0.0}
    for each in plan.predicted.bytes_by_network:
        if each.network != "local":
            planned["bytes_ethernet" if each.network == "ethernet" else "bytes_fabric"] += each.bytes
    for name, bytes_sent in sent.items():
        if bytes_sent is not None and planned[name] and abs(bytes_sent / planned[name] - 1) > MOST_BYTES_SHARE:
            return (f"{name[6:]} carried {bytes_sent / 1e9:.2f} GB, and by the plan it should be "
                    f"{planned[name] / 1e9:.2f}; lower cluster.emulate.scale (now {timed.scale:g}), so that headers "
                    "and small messages of the ranks weigh less")
    return ""
