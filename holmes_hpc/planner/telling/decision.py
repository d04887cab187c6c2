"""What comes of a search: the best layout with the alternatives to it, or why there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from holmes_hpc.errors import BatchRefusedError, DepthRefusedError, MemoryRefusedError, PlanRefusedError
from holmes_hpc.planner.search.candidate import Candidate
from holmes_hpc.planner.search.plainest import plainest
from holmes_hpc.planner.search.search import Searched
from holmes_hpc.planner.telling.alternatives import alternatives
from holmes_hpc.planner.telling.memory import memory_words
from holmes_hpc.values import Rejected


def decide(searched: Searched) -> tuple[Candidate, tuple[Rejected, ...]]:
    """Return the best layout and the best of the others.

    Of layouts that the predictions do not tell apart the plainest is chosen, where all strategies are compared and
    `parallel.plain` is on.

    What the engine of this version cannot run is chosen only where nothing else fits; faster ones are among the
    others, marked so. Raises PlanRefusedError, with the reasons, when there is no layout.
    """
    refusals = {name: [str(refusal) for refusal in _telling(each)] for name, each in searched.refusals.items()}
    best = searched.best
    if best is None:
        raise PlanRefusedError(_no_plan(searched.candidates, refusals))
    settings = best.task.settings
    if settings.compares_all and settings.plain:
        best = plainest(best, [each for each in searched.candidates if each.fits])
    return best, alternatives(best, searched.candidates, refusals)


def _telling(refusals: Sequence[PlanRefusedError]) -> Sequence[PlanRefusedError]:
    """Leave out depths that only the search tried, unless there is nothing else to say.

    Where memory is too small for what was asked, other degrees that cannot be are not why. Of layouts that the batch is
    too small for, those that need the least are.
    """
    batches = [refusal.least_batch for refusal in refusals if isinstance(refusal, BatchRefusedError)]
    refusals = [refusal for refusal in refusals
                if not (isinstance(refusal, BatchRefusedError) and refusal.least_batch > min(batches))]
    memory = [refusal for refusal in refusals if isinstance(refusal, MemoryRefusedError)]
    return memory or [refusal for refusal in refusals if not isinstance(refusal, DepthRefusedError)] or refusals


def _lack(candidate: Candidate) -> float:
    """Return how many times its GPU's memory the worst rank of a layout needs."""
    if candidate.shortage is None:
        return 0.0
    task = candidate.task
    return candidate.shortage.need_gib / task.machine.memory_gib(task.cluster.node_of(candidate.shortage.rank))


def _no_plan(candidates: Sequence[Candidate], refusals: Mapping[str, Sequence[str]]) -> str:
    """Return the most frequent reason of every strategy, one a line where they differ.

    Where some layouts were simulated and none fits into memory, that of the one that lacks the least is why.
    """
    if candidates:
        return memory_words(min(candidates, key=_lack))
    strategies: dict[str, list[str]] = {}
    for name, messages in refusals.items():
        if messages:
            strategies.setdefault(Counter(messages).most_common(1)[0][0], []).append(name)
    if len(strategies) == 1:
        return next(iter(strategies))
    lines = [f"  {', '.join(names)}: {message.removeprefix(f'{names[0]}: ')}" for message, names in strategies.items()]
    return "\n".join(["no strategy has a plan:", *lines])
