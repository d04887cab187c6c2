"""Whether a checkpoint is as new as its name: what its index says of itself, and of those beside it. Needs no torch.

A folder may have been restored from a backup, copied from another run, or kept from an attempt that a later one, which
began again further back, has not reached yet. Steps cannot tell; so every checkpoint has a serial number, counted over
all that were in the folder, and no clock is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from holmes_hpc.checkpoint.index import Index, read_index
from holmes_hpc.checkpoint.naming import newest_first
from holmes_hpc.errors import CheckpointError
from holmes_hpc.foreign import number, whole_number

_MOST_NEIGHBOURS = 8

ANY = ""
"""In place of the identity of a run: a checkpoint of any run is meant."""


def next_serial(folder: Path) -> int:
    """Return the serial number of the next checkpoint in a folder: above that of each that is there."""
    return 1 + max((_serial(index) or 0 for _, index in _indices(newest_first(folder))), default=0)


def doubts(path: Path, index: Index, owner: str | None = ANY) -> Iterator[str]:
    """Say what speaks against the checkpoint at `path` being the state after its step; nothing where nothing does.

    `owner` is the identity of the run in whose folder it lies, None of one that has written no checkpoint yet; ANY
    where it may be of any run.
    """
    yield from _own_doubts(index)
    written_by = index.extra.get("identity")
    if owner != ANY and isinstance(written_by, str) and written_by != owner:
        yield (f"it was written by another run ({_run(index) or 'unknown'}), and lies in this one's folder. Remove it "
               "there if that is not meant; train.resume=PATH takes up a checkpoint where it lies")
    others = [(other, each) for other, each in _indices(newest_first(path.parent)) if other.name != path.name]
    foreign = next(((other, each) for other, each in others if _run(each) != _run(index) and _run(each)), None)
    if foreign is not None and _run(index):
        yield f"it was written by the run {_run(index)}, and {foreign[0].name} beside it by {_run(foreign[1])}"
    later = next(((other, how) for other, each in others if each.step < index.step and _run(each) == _run(index)
                  if (how := _written_later(each, index))), None)
    if later is not None:
        other, how = later
        yield (f"{other.name} beside it was written after it{how}: the run has begun again further back since, so this "
               f"is the state of an earlier course. To go on with the later one set train.resume={other}")


def _own_doubts(index: Index) -> Iterator[str]:
    numbers = _mapping(_mapping(_mapping(index.extra.get("parts")).get("optimizer")).get("numbers"))
    updates, skipped = number(numbers.get("optimizer.steps")), number(numbers.get("skipped_steps"))
    if updates is not None and skipped is not None and updates + skipped != index.step:
        yield (f"its index says step {index.step}, and its optimizer has made {updates:.0f} updates and left out "
               f"{skipped:.0f}: an older or newer state stands under this name")
    following = whole_number(_mapping(index.extra.get("data")).get("next_step"))
    if following is not None and following != index.step + 1:
        yield f"its index says step {index.step}, and that step {following} comes next"


def _written_later(other: Index, index: Index) -> str:
    """Return how it is known that `other` was written after `index`, as words to add; "" where it is not known."""
    mine, theirs = _serial(index), _serial(other)
    if mine is not None and theirs is not None:
        return f" (number {theirs} of its folder, this one is number {mine})" if theirs > mine else ""
    times = _time(index), _time(other)
    if times[0] is None or times[1] is None or times[1] <= times[0]:
        return ""
    return f" by the clocks of their nodes ({other.extra['time']}, {index.extra['time']})"


def _indices(paths: Sequence[Path]) -> Iterator[tuple[Path, Index]]:
    """Yield the newest few checkpoints that can be read, with their indices."""
    for path in paths[:_MOST_NEIGHBOURS]:
        try:
            yield path, read_index(path)
        except CheckpointError:
            continue


def _serial(index: Index) -> int | None:
    return whole_number(index.extra.get("serial"))


def _run(index: Index) -> str:
    run = index.extra.get("run")
    return Path(run).name if isinstance(run, str) else ""


def _time(index: Index) -> datetime | None:
    try:
        found = datetime.fromisoformat(str(index.extra.get("time")))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
