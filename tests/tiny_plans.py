"""Hand-written plans for the tests of process groups."""

from holmes_hpc.values import Group, Plan, Prediction, RankPlace, ScheduleChoice


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
