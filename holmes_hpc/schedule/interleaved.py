"""The interleaved 1F1B order of Megatron-LM (Narayanan et al. 2021), for pipelines that go round their ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holmes_hpc.schedule.list_scheduling import BACKWARD, FORWARD, Pass
from holmes_hpc.schedule.policies import Place
from holmes_hpc.values import Pipeline


def goes_round(pipelines: Sequence[Pipeline], chunks: int) -> bool:
    """Return whether Megatron's order exists: every rank in one pipeline, whose stages go round its ranks.

    The number of micro-batches has to be a multiple of that of the ranks.
    """
    used: set[int] = set()
    for pipeline in pipelines:
        period, rest = divmod(len(pipeline.stages), chunks)
        if rest or pipeline.microbatches % period:
            return False
        parts = [stage.ranks for stage in pipeline.stages]
        if any(part != parts[s % period] for s, part in enumerate(parts)):
            return False
        ranks = [rank for part in parts[:period] for rank in part]
        if len(set(ranks)) < len(ranks) or used & set(ranks):
            return False
        used |= set(ranks)
    return True


def interleaved_orders(pipelines: Sequence[Pipeline], chunks: int,
                       warmups: Mapping[Place, int]) -> dict[int, list[Pass]]:
    """Return each rank's work in Megatron's interleaved order, with more warm-up forwards upstream of slow hops.

    With p ranks and v chunks, rank r warms up with 2 (p - r - 1) + (v - 1) p forwards and the extra of every hop
    behind its first stage; then forwards and backwards alternate. Forward k is of chunk (k mod p v) / p and
    micro-batch (k / p v) p + k mod p; backwards go through the chunks the other way round.
    """
    orders: dict[int, list[Pass]] = {}
    for p, pipeline in enumerate(pipelines):
        period = len(pipeline.stages) // chunks
        total = pipeline.microbatches * chunks
        for r in range(period):
            extra = sum(warmups.get((p, s), 0) for s in range(r, len(pipeline.stages)))
            warmup = min(total, 2 * (period - r - 1) + (chunks - 1) * period + extra)
            order = [_pass(FORWARD, p, r, period, chunks, k) for k in range(warmup)]
            for k in range(total - warmup):
                order += [_pass(FORWARD, p, r, period, chunks, warmup + k), _pass(BACKWARD, p, r, period, chunks, k)]
            order += [_pass(BACKWARD, p, r, period, chunks, k) for k in range(total - warmup, total)]
            orders.update(dict.fromkeys(pipeline.stages[r].ranks, order))
    return orders


def _pass(kind: int, p: int, r: int, period: int, chunks: int, k: int) -> Pass:
    group, within = divmod(k, period * chunks)
    chunk = within // period
    if kind == BACKWARD:
        chunk = chunks - 1 - chunk
    return kind, p, chunk * period + r, group * period + k % period
