"""What a wind tunnel refuses at the start, what it leaves aside, and how it stands to the cluster that it plays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import yaml

from holmes_hpc.config.folders import package_folder
from holmes_hpc.config.schema import Data, Optimizer, Train
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.here.resume import WORDS
from holmes_hpc.values.timed import TimedPrices

_IDLE = {
    "train": (Train, ("compile", "on_nonfinite", "loss_scale", "loss_scale_window", "checkpoint_every",
                      "keep_checkpoints", "checkpoint_sha256", "validate_every", "validation_samples",
                      "resume_schedule")),
    "optimizer": (Optimizer, tuple(each.name for each in dataclasses.fields(Optimizer)
                                   if each.name not in ("name", "sharded"))),
    "data": (Data, ("name", "path")),
}
"""Settings of what a rank that waits does not do: it trains, validates and saves nothing, and reads no data."""


def check_tunnel(config: Any) -> None:
    """Raise ConfigurationError for what only ranks with weights and links at their own rates can do."""
    resume = str(config.train.resume)
    if resume not in WORDS:
        raise ConfigurationError(
            f"train.resume={resume}: the ranks of a wind tunnel (cluster.emulate.compute=timed) hold no weights, so "
            "they cannot go on from a checkpoint; leave train.resume out, or set cluster.emulate.compute=real")
    if config.launch.probe or config.launch.probe_only:
        what = "`holmes probe`" if config.launch.probe_only else "launch.probe=true"
        raise ConfigurationError(
            f"{what}: the links of a wind tunnel (cluster.emulate.compute=timed) have the rates of the cluster file "
            f"divided by cluster.emulate.scale={config.cluster.emulate.scale:g} and by the dilation, so measuring them "
            "tells nothing of the cluster; leave it out, or set cluster.emulate.compute=real")


def idle_settings(config: Any) -> Iterator[str]:
    """Yield what was asked for that plays no part in a wind tunnel."""
    if config.model.get("from_pretrained") is not None:
        yield ("model.from_pretrained: a wind tunnel (cluster.emulate.compute=timed) takes the model's sizes from it, "
               "and no weights: its ranks hold none")
    # Each optimizer's file has rates of its own.
    usual = yaml.safe_load((package_folder() / "optimizer" / f"{config.optimizer.name}.yaml").read_text("utf-8"))
    names = [f"{group}.{name}" for group, (kind, fields) in _IDLE.items() for name in fields
             if config[group][name] != (usual if group == "optimizer" else {}).get(name, getattr(kind(), name))]
    if names:
        yield (f"a wind tunnel (cluster.emulate.compute=timed) trains, validates and saves nothing, and reads no data: "
               f"{', '.join(names)} {'plays' if len(names) == 1 else 'play'} no part")


def tunnel_words(timed: TimedPrices, *, asked: bool = False) -> str:
    """Return in a line how a wind tunnel stands to the cluster that it plays.

    `asked`: `cluster.emulate.dilation` gives the dilation.
    """
    total = sum(timed.goodput_gbps(*key) for key in timed.rates)
    pace = ("everything goes at the cluster's own pace" if timed.dilation == 1 else
            f"everything goes {timed.dilation:.3g} times slower")
    pace += (f" (cluster.emulate.dilation={timed.dilation:.3g})" if asked else
             " (dilation 1)" if timed.dilation == 1 else " (dilation), so that this machine keeps up")
    return (f"emulated, timed: ranks wait for as long as the GPUs would compute; bytes and rates are divided by "
            f"{timed.scale:g}, and {pace}: its links carry {total:.2f} Gbit/s at most, all together. Figures are those "
            "of the cluster; there is no loss and no checkpoint")
