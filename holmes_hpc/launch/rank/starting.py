"""The time before a rank trains: signs of life from its first moment, and patience with ranks that still get on.

Text that becomes tokens takes minutes or hours, and not on all nodes alike. Whoever waits for others waits for
progress, each `train.start_timeout_seconds` for the next piece of it, and not for the end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch.distributed import DistStoreError

from holmes_hpc.comm.activity import Activity
from holmes_hpc.comm.store.client import RunStore
from holmes_hpc.errors import NetworkError
from holmes_hpc.launch.rank.patience import LOOK_SECONDS, Patience
from holmes_hpc.launch.rank.settings import RankSettings
from holmes_hpc.runs.beats import Beat, write_beat
from holmes_hpc.troubles import Troubles
from holmes_hpc.values.doing import MEETING

_BEAT_SECONDS = 2.0
_ALL_HERE = "holmes/all here"
_SHOWN = 4
_LATER_SECONDS = 2.0
"""Rank 0 knows best who is missing, and says so first."""


@contextmanager
def first_signs(settings: RankSettings, activity: Activity) -> Iterator[None]:
    """Give signs of life of what the activity says, by a thread, until the block ends."""
    ended = threading.Event()

    def beat() -> None:
        number, changes, since = 0, -1, time.monotonic()
        troubles = Troubles("giving signs of life")
        while True:
            if activity.changes != changes:
                changes, since = activity.changes, time.monotonic()
            number += 1
            with troubles.said():
                write_beat(settings.folder, settings.rank, Beat.of(number, activity.now, time.monotonic() - since))
            if ended.wait(_BEAT_SECONDS):
                return

    thread = threading.Thread(target=beat, name="first signs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(_BEAT_SECONDS)  # else its last beat could come after the first one of the watchdog


def wait_for_all(store: RunStore, settings: RankSettings, activity: Activity, seconds: float) -> None:
    """Wait until every rank has come to the store, for each one as long as it gets on.

    Raises NetworkError that names the missing ranks, what the first of them did last, and the setting.
    """
    activity.begin(MEETING)
    store.set(_here(settings.rank), "")
    if settings.rank == 0:
        for rank in range(1, settings.plan.world_size):
            _await(store, settings, activity, rank, seconds)
        store.set(_ALL_HERE, "")
        return
    patience = Patience(settings.folder, 0, seconds + _LATER_SECONDS)
    while not _appears(store, _ALL_HERE):
        if patience.is_over():
            raise _late(settings, [0], patience.said, seconds)


def _await(store: RunStore, settings: RankSettings, activity: Activity, rank: int, seconds: float) -> None:
    """On rank 0: wait for another one, and tell in this rank's own signs of life how far that one is."""
    patience = Patience(settings.folder, rank, seconds)
    while not _appears(store, _here(rank)):
        if patience.is_over():
            missing = [each for each in range(rank, settings.plan.world_size) if not store.check([_here(each)])]
            if missing[:1] == [rank]:
                raise _late(settings, missing, patience.said, seconds)
        last = f"has been {patience.said}" if patience.said else "is not here"
        words = f"{MEETING}: {_who(settings, rank)} {last}"
        if words != activity.now.action:
            activity.begin(words)


def _late(settings: RankSettings, missing: Sequence[int], said: str, seconds: float) -> NetworkError:
    names = ", ".join(_who(settings, rank) for rank in missing[:_SHOWN])
    more = f" and {len(missing) - _SHOWN} more" if missing[_SHOWN:] else ""
    last = f"has been {said} all the time" if said else "gave no sign of life"
    return NetworkError(f"{_who(settings, settings.rank)} waited {seconds:g} s for {names}{more}, and rank "
                        f"{missing[0]} {last}; look at its node and {settings.folder.log_path(missing[0])}, or raise "
                        f"train.start_timeout_seconds (now {seconds:g}) if it is only slow")


def _appears(store: RunStore, key: str) -> bool:
    """Wait for a key a while; say whether it is there. Raises NetworkError where rank 0 has gone."""
    try:
        return store.appears(key, LOOK_SECONDS)
    except DistStoreError as error:
        raise NetworkError(f"rank 0 ended while this rank waited to meet all others ({error})") from error


def _here(rank: int) -> str:
    return f"holmes/here/{rank}"


def _who(settings: RankSettings, rank: int) -> str:
    return f"rank {rank} on node {_node(settings, rank)}"


def _node(settings: RankSettings, rank: int) -> str:
    place = settings.plan.ranks[rank]
    return str(place.node or place.slot)
