"""The optimizer's state as tensors of the global parameters, for checkpoints of any layout."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from holmes_hpc.checkpoint.entries import Entry
from holmes_hpc.checkpoint.model import MODEL_PREFIX
from holmes_hpc.engine.flat import Segment
from holmes_hpc.engine.local_model import LocalModel
from holmes_hpc.engine.optimizer import Optimizer

_MASTER = "master"
_PREFIXES = {"exp_avg": "optimizer/exp_avg/", "exp_avg_sq": "optimizer/exp_avg_sq/",
             "momentum_buffer": "optimizer/momentum/", _MASTER: MODEL_PREFIX}
"""Of torch's name of a moment the beginning of its key in a checkpoint. A master is the parameter itself in float32."""


def state_entries(optimizer: Optimizer, model: LocalModel) -> Iterator[Entry]:
    """Return what this rank keeps of the optimizer's state, as float32 views to be saved or filled.

    In lower precision the float32 masters are among them, under the parameters' keys; in float32 the parameters are
    their own masters.
    """
    for run in optimizer.runs:
        kinds = [*optimizer.moments, *([_MASTER] if run.bucket.values.dtype != torch.float32 else [])]
        written = run.flat.route.writes(run.bucket.number)
        for segment in run.flat.segments_in(run.begin, run.end):
            begin, end = max(run.begin, segment.begin), min(run.end, segment.end)
            for offsets, sizes, start in _of_segment(segment, model, begin - segment.begin, end - segment.begin):
                at = start + segment.begin - run.begin
                for kind in kinds:
                    flat = run.values if kind == _MASTER else run.moments[kind]
                    part = flat[at:at + _count(sizes)].view(sizes)
                    name = segment.piece.name
                    yield Entry(_PREFIXES[kind] + name, model.global_shape(name), offsets, sizes, part, written)


def rectangles(shape: tuple[int, ...], begin: int, end: int) -> list[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Return the rectangles that the flat range from `begin` to `end` of a tensor of 1 or 2 dims consists of.

    Each as its offsets, its sizes, and where in the flat tensor it begins: at most the end of a row, whole rows, and
    the beginning of a row. Raises ValueError for more dims.
    """
    if len(shape) == 1:
        return [((begin,), (end - begin,), begin)] if end > begin else []
    if len(shape) != 2:
        raise ValueError(f"a parameter of shape {shape}: expected one or two dims")
    width = shape[1]
    found: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
    while begin < end:
        row, column = divmod(begin, width)
        sizes: tuple[int, int]
        if column or end - begin < width:
            sizes = (1, min(end - begin, width - column))
        else:
            sizes = ((end - begin) // width, width)
        found.append(((row, column), sizes, begin))
        begin += sizes[0] * sizes[1]
    return found


def _of_segment(segment: Segment, model: LocalModel, begin: int,
                end: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Return rectangles of the global parameter for a flat range of a segment, and where in the segment they begin."""
    corner = list(model.rectangle(segment.piece.name)[0])
    if segment.piece.dim is not None:
        corner[segment.piece.dim] += segment.piece.begin
    for offsets, sizes, start in rectangles(segment.shape, begin, end):
        yield tuple(a + b for a, b in zip(corner, offsets, strict=True)), sizes, start


def _count(sizes: tuple[int, ...]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count
