"""What the strict backend enforces."""

from __future__ import annotations

from dataclasses import dataclass

FIRST, ALL = "first", "all"
"""Which operations hold the host until all members are there: the first of a kind on a communicator, or all."""


@dataclass(frozen=True)
class Rules:
    """How strict a device is, beside what always holds.

    Always: one stream a communicator with its operations in order of issue, no tags, sends that end with their
    receives, operations that meet must be alike, results that may be used only once they were waited for, and inputs
    that may not change before.

    `queues`: communicators, in the order of their making, share so many hardware queues, in which an operation that
    cannot start holds up all behind it (CUDA_DEVICE_MAX_CONNECTIONS); 0: each has its own. `in_order`: an operation
    starts only once all issued before it on the device have started. `resident`: so many run at a time, given in the
    order of issue; 0: any number. `hold`: which operations hold the host (NCCL connects lazily, on the host).
    `seen`: the probability with which a poll sees that an operation is over, since a host that runs ahead sees it late.
    `jitter_seconds`: operations start up to so much later, drawn by `seed`. `stall_seconds` without any progress are a
    deadlock. `abort`: the process then ends by SIGABRT, as by NCCL's watchdog.
    `ahead`: the host runs ahead of what computes, as of a GPU: operations of torch are put on queues.
    `one_group_an_edge`: as if messages both ways of an edge shared a communicator. `devices`: what the driver calls
    each rank's card and part of it.
    """

    queues: int = 0
    in_order: bool = False
    resident: int = 0
    hold: str = ""
    seen: float = 1.0
    jitter_seconds: float = 0.0
    seed: int = 0
    stall_seconds: float = 20.0
    abort: bool = False
    one_group_an_edge: bool = False
    ahead: bool = False
    devices: tuple[tuple[str, str], ...] = ()
