"""How many layers fit into the memory of a stage: the one closed form that shapes, templates and fleets ask."""

from __future__ import annotations

import numpy

from holmes_hpc.planner.strategies.closed_form import Floats


def room(rows: Floats, shared_by: Floats, in_flight: Floats,
         ends_shared_by: Floats | None = None) -> Floats:
    """Return how many layers fit into stages, negative where not even the ends do.

    `rows` are those of `StageTable.row` along the last axis; `shared_by` is how many ranks share the optimizer's
    state, and `in_flight` how many micro-batches are kept.
    """
    whole, divided, kept, free, end_divided, end_kept = (rows[..., i] for i in range(2, 8))
    ends = shared_by if ends_shared_by is None else ends_shared_by
    return numpy.floor((free - end_divided / ends - in_flight * end_kept)
                       / (whole + divided / shared_by + in_flight * kept))
