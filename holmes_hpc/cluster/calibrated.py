"""How finished runs corrected the speed of GPU kinds: the file that `holmes calibrate` writes and `cluster.calibrated`
names."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holmes_hpc.cluster.gpus import GPU_NAMES, Gpu
from holmes_hpc.errors import ConfigurationError

FORMAT_VERSION = 1


@dataclass(frozen=True)
class CalibratedGpu:
    """One GPU kind in one precision: its forwards and backwards take `slowdown` times what the model says.

    `lowest` and `highest` are the smallest and largest ratio of a stage, `actions` how many measured ones it rests on.
    """

    gpu: str
    precision: str
    slowdown: float
    lowest: float
    highest: float
    actions: int


def to_json(gpus: Sequence[CalibratedGpu], **further: Any) -> dict[str, Any]:
    """Return the content of the file; `further` are facts for people, such as the runs that it rests on."""
    return {"format": FORMAT_VERSION, **further, "gpus": [dataclasses.asdict(each) for each in gpus]}


def read_calibrated(path: str | None) -> tuple[CalibratedGpu, ...]:
    """Return the GPU kinds of `cluster.calibrated`; none where nothing is named. Raises ConfigurationError."""
    if path is None:
        return ()
    try:
        data = json.loads(Path(path).expanduser().read_text(encoding="utf-8"))
        if data["format"] != FORMAT_VERSION:
            raise ValueError(f"format {data['format']} is not {FORMAT_VERSION}")
        found = tuple(CalibratedGpu(**each) for each in data["gpus"])
        for each in found:
            if each.gpu not in GPU_NAMES or not 0 < float(each.slowdown) < float("inf"):
                raise ValueError(f"{each.gpu!r} with slowdown {each.slowdown!r}")
        return found
    except OSError as error:
        raise ConfigurationError(f"cluster.calibrated={path}: {error.strerror}; make it by `holmes calibrate RUN...`, "
                                 "or leave it out") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"cluster.calibrated={path} is no file of `holmes calibrate`: {error}; make it again, "
                                 "or leave it out") from error


def calibrate_gpu(kind: Gpu, found: Sequence[CalibratedGpu]) -> Gpu:
    """Return a GPU kind with the slowdowns that were found for it."""
    slowdowns = {each.precision: each.slowdown for each in found if each.gpu == kind.name}
    return dataclasses.replace(kind, slowdowns=slowdowns) if slowdowns else kind
