"""What a plug-in calls to add kinds of its own; `docs/extending.md` shows each. Importing it loads no torch.

Every function raises ConfigurationError for a name that is malformed or taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holmes_hpc import registry
from holmes_hpc.architecture.kinds import Activation, Normalization
from holmes_hpc.cluster.nics import Nic, check_family, is_builtin
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.planner.layout.groups import GroupRules
from holmes_hpc.planner.strategies.shapes import Shape, divisors, tensor_groups
from holmes_hpc.planner.task import Task
from holmes_hpc.values.sources import SourceKind
from holmes_hpc.values.trackers import OpenTracker, TrackedRun, Tracker

__all__ = ["GroupRules", "Shape", "Task", "TrackedRun", "Tracker", "add_activation", "add_nic", "add_normalization",
           "add_source", "add_strategy", "add_tracker", "divisors", "tensor_groups"]


def add_nic(name: str, *, family: str, bandwidth_gbps: float, latency_us: float) -> None:
    """Add a NIC kind: data rate of one NIC in one direction in 10^9 bit/s, one-way time of a small message.

    `family` says which NICs can talk to each other: ib, roce, ethernet, efa, slingshot or opa.
    """
    check_family(family, f"the NIC kind {name!r}")
    if not (bandwidth_gbps > 0 and latency_us >= 0):
        raise ConfigurationError(f"the NIC kind {name!r}: bandwidth_gbps={bandwidth_gbps} must be above 0 and "
                                 f"latency_us={latency_us} at least 0.")
    registry.NICS.add(name, Nic(name, family, bandwidth_gbps, latency_us), taken=(name,) if is_builtin(name) else ())


def add_activation(name: str, function: Callable[[Any], Any], *, gated: bool = False) -> None:
    """Add an activation of the feed-forward layer: a function of one tensor to one of the same shape.

    `gated`: the layer has a third matrix, and the function of its product is multiplied with the up-projection, as in
    SwiGLU. The planner prices it as GELU, or as SwiGLU where it is gated.
    """
    registry.ACTIVATIONS.add(name, Activation(function, gated))


def add_normalization(name: str, build: Callable[[int, float, bool], Any], *, bias: bool = False) -> None:
    """Add a normalisation: `build(hidden_size, epsilon, bias)` returns a torch module over the last dim.

    The module has a parameter `weight` of that size, and no other than `bias`, which it has where its argument says so:
    where `bias` is true here and `model.bias` too. Weights begin at one, biases at zero.
    """
    registry.NORMALIZATIONS.add(name, Normalization(build, bias))


def add_strategy(name: str, shapes: Callable[[Task, int], Iterable[Shape]]) -> None:
    """Add a strategy: `shapes(task, tensor)` proposes which ranks form which stage, for a tensor-parallel degree.

    Layers, micro-batches, schedule, groups and the choice between shapes are the planner's. `parallel.strategy=auto`
    compares it with the others. It raises PlanRefusedError where the asked degrees fit none.
    """
    registry.STRATEGIES.add(name, shapes)


def add_source(name: str, read: Callable[[Any], Any], *, needs_path: bool = False,
               vocab_size: int | None = None) -> None:
    """Add a kind of data: `read(settings)` returns the tokens as one array of whole numbers, mapped or in memory.

    `settings` holds the group `data`, or the source of a mixture: `path`, `dtype`, `pattern`, `tokenizer`, ...;
    `settings.required_path` is the path as a Path. With `needs_path` a missing path is refused before anything
    starts; `vocab_size` is the vocabulary that the tokens are of, where it is known. Every rank calls `read`, and all
    must get the same tokens.
    """
    registry.SOURCES.add(name, SourceKind(read, needs_path, vocab_size))


def add_tracker(name: str, opens: OpenTracker) -> None:
    """Add a tracker: `opens(run)` returns what takes the rows of a run's metrics, by `add(row)` and at last `close()`.

    It is opened by rank 0 of a run whose `run.trackers` names it, and called on a thread of its own. What it raises is
    said once; training neither stops nor waits for it.
    """
    registry.TRACKERS.add(name, opens)
