"""torch's own profiler, over the steps and ranks that the settings name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from holmes_hpc.runs import RunFolder


@contextmanager
def profiled(train: Any, rank: int, folder: RunFolder, step: int, say: Callable[[str], None]) -> Iterator[None]:
    """Profile a step, where `train.profile_steps` and `train.profile_ranks` name it and this rank.

    The trace is `ranks/profile-rank-N-step-M.json`, for Perfetto. One that cannot be written is said, and no more.
    """
    if step not in (train.get("profile_steps") or ()) or rank not in train.profile_ranks:
        yield
        return
    with torch.profiler.profile() as profiler:
        yield
    path = folder.timeline_path(rank).with_name(f"profile-rank-{rank}-step-{step}.json")
    try:
        profiler.export_chrome_trace(str(path))
    except (OSError, RuntimeError) as error:
        say(f"WARNING: the profile of step {step} cannot be written to {path}: {error}; training goes on")
