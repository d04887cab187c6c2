"""Hand-written plans for the tests of process groups."""

from holmes_hpc.values import Group, Plan, Prediction, RankPlace, ScheduleChoice
from holmes_hpc.values.levels import GroupList, Sums, in_levels


def tiny_plan(world_size, groups, reductions=()):
    """Return a plan of so many ranks with the world group and `groups`; even ranks sit on ib, odd on roce."""
    fabrics = ("ib", "roce")
    return Plan(
        strategy="manual",
        world_size=world_size,
        num_layers=2,
        micro_batch_size=1,
        global_batch_size=1,
        ranks=tuple(
            RankPlace(rank, f"{fabrics[rank % 2]}/{rank // 2}", 0, "cpu", fabrics[rank % 2])
            for rank in range(world_size)
        ),
        pipelines=(),
        groups=(Group("world", tuple(range(world_size)), "ethernet"), *groups),
        reductions=tuple(reductions),
        schedule=ScheduleChoice("1f1b"),
        predicted=Prediction("emulated", 1.0, 1.0, 1.0, (0.0,) * world_size),
    )


def tiny_reduction(groups, owners, inner, outer=(), by_parts=False, *, sharded=False, slot_of=None, owns=("layers.0",)):
    """Return a reduction by `levels.Sums`, and the plan's groups after the world with what it needs further."""
    found = GroupList([Group("world", (), "ethernet"), *groups])
    reduction = in_levels(owns, owners, Sums(inner, outer, by_parts), found, sharded=sharded, slot_of=slot_of)
    return reduction, found.groups[1:]
