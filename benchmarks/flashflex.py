"""Our search against FlashFlex's choice and grids of identical pipelines, all under FlashFlex's own model.

    python -m benchmarks.flashflex [CLUSTER ...]

Llama 7B, on readme_setup3_56 30B, on the clusters of tests/data/unlike_clusters, micro-batches of one sample. Samples
are counted truly. The column `bar` is the best identical-pipeline plan that an earlier, independent grid reached under
this model.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence

from benchmarks.flashflex_choice import choose
from benchmarks.flashflex_model import Model, ModelStageCosts, StageOf
from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import Machine
from holmes_hpc.config.compose import compose
from holmes_hpc.planner.strategies.fleets.knapsack import alike_fleets, share_microbatches
from holmes_hpc.planner.strategies.fleets.placement import place, used_slots
from holmes_hpc.planner.strategies.fleets.space import Space
from holmes_hpc.planner.strategies.fleets.templates import Template
from holmes_hpc.planner.strategies.unlike import search_fleets
from holmes_hpc.planner.task import PlanSettings, Task

CASES = {"mix_16": (4, 64, 64 / 11.236, 96 / 31.709), "readme_setup2_32": (4, 120, 120 / 35.424, 90 / 64.181),
         "readme_setup1_40": (4, 120, 120 / 33.459, 120 / 76.694), "mix_64": (4, 256, None, 256 / 42.508),
         "readme_setup3_56": (4, 240, None, 60 / 198.046), "mix_512": (32, 2048, None, None)}
"""Pipelines that FlashFlex starts from, the batch, and in samples a second the bar, where there is one, and what a run
of FlashFlex's public planner chose (its own seconds, the samples that it really prices)."""
_MOST_PLACED = 400
Pipelines = list[tuple[StageOf, ...]]


class ModelSpace(Space):
    """The search's space with this model's serial gradient sync."""

    def sync_seconds(self, template: Template, *, across: bool) -> float:
        """Return the sum over all layers, since this model reduces one after the other."""
        total, first = 0.0, 0
        for kind, _, count in template.segments:
            held = sum(template.layers[first:first + count])
            node = self.kinds[kind]
            seconds_a_byte = self.stage_costs.sync_seconds_a_byte((node,), (1,))
            total += held * self.stage_costs.layer_gradient_bytes() * seconds_a_byte
            first += count
        return total


def space_of(model: Model, batch: int) -> ModelSpace:
    """Return what the search may choose from."""
    config = compose(["+cluster=mixed", f"model={model.trained}", "train.precision=float16",
                      "parallel.micro_batch_size=1", "parallel.leave_nodes_out=true",
                      f"train.global_batch_size={batch}"])
    machine = Machine("described", model.cluster, {})
    task = Task(PlanSettings.from_config(config), Architecture.from_config(config.model), model.cluster, machine)
    return ModelSpace(task, ModelStageCosts(model))


def ours(model: Model, batch: int) -> tuple[float, Pipelines, list[int]]:
    """Return the step of the best fleet of our search, placed both ways and tuned under this model."""
    space = space_of(model, batch)
    best: tuple[float, Pipelines, list[int]] | None = None
    templates = space.templates(1)
    syncs = [space.sync_seconds(template, across=False) for template in templates]
    alike = sorted(alike_fleets(space.kinds, templates, syncs, batch, may_idle=True), key=lambda each: each.seconds)
    fleets = [found.fleet for found in search_fleets(space)] + alike[:_MOST_PLACED]
    for fleet in fleets:
        cluster = model.cluster.only(used_slots(fleet, space.kinds))
        exact = share_microbatches([template for template, _ in fleet.pipelines], [0.0] * len(fleet.pipelines), batch)
        for together in (True, False):
            placed = None if exact is None else place(exact, space.kinds, cluster, stages_together=together)
            if placed is None:
                continue
            stages = [tuple(StageOf(cluster.node_of(stage.ranks[0]).slot, cluster.node_of(stage.ranks[0]).gpu,
                                    stage.tensor, stage.num_layers) for stage in pipeline.stages)
                      for pipeline in placed]
            counts = [pipeline.microbatches for pipeline in placed]
            # The model charges hops to the stage before them and our search to none: the other direction may be better.
            for either in (stages, [each[::-1] for each in stages]):
                seconds = model.step_seconds(either, counts)
                if (best is None or seconds < best[0]) and all(_fits(model, each) for each in either):
                    best = seconds, either, counts
    if best is None:
        raise SystemExit(f"{model.name}: nothing fits")
    return tune(model, *best)


def tune(model: Model, seconds: float, pipelines: Pipelines, counts: list[int]) -> tuple[float, Pipelines, list[int]]:
    """Move layers between stages and micro-batches between pipelines as long as the model says that it pays."""
    while True:
        better = min(((model.step_seconds(p, c), p, c) for p, c in _changes(model, pipelines, counts)),
                     key=lambda each: each[0], default=None)
        if better is None or better[0] >= seconds * (1 - 1e-9):
            return seconds, pipelines, counts
        seconds, pipelines, counts = better


def _changes(model: Model, pipelines: Pipelines, counts: list[int]) -> Iterator[tuple[Pipelines, list[int]]]:
    for cut in dict.fromkeys(tuple((stage.gpu, stage.tensor, stage.layers) for stage in stages)
                             for stages in pipelines):
        members = [p for p, stages in enumerate(pipelines)
                   if tuple((stage.gpu, stage.tensor, stage.layers) for stage in stages) == cut]
        for a in range(len(cut)):
            for b in range(len(cut)):
                moved = _moved(model, pipelines[members[0]], a, b) if a != b and cut[a][2] > 1 else None
                if moved is not None:
                    yield [tuple(dataclasses.replace(stage, layers=new.layers)
                                 for stage, new in zip(stages, moved, strict=True)) if p in members else stages
                           for p, stages in enumerate(pipelines)], counts
    for a in range(len(counts)):
        for b in range(len(counts)):
            if a != b and counts[a] > 1:
                yield pipelines, [count + (p == b) - (p == a) for p, count in enumerate(counts)]


def _moved(model: Model, stages: Sequence[StageOf], a: int, b: int) -> tuple[StageOf, ...] | None:
    moved = tuple(dataclasses.replace(stage, layers=stage.layers + (s == b) - (s == a))
                  for s, stage in enumerate(stages))
    return moved if _fits(model, moved) else None


def _fits(model: Model, stages: Sequence[StageOf]) -> bool:
    last = len(stages) - 1
    return all(model.fits(stage, first=s == 0, last=s == last) for s, stage in enumerate(stages))


def identical(model: Model, batch: int) -> float:
    """Return the seconds of the best grid of identical pipelines: one template, equal counts, no tuning."""
    space = space_of(model, batch)
    templates = space.templates(1)
    best = float("inf")
    ranked = sorted(alike_fleets(space.kinds, templates, [0.0] * len(templates), batch, may_idle=True),
                    key=lambda each: each.seconds)
    for fleet in ranked[:_MOST_PLACED]:
        if batch % len(fleet.pipelines):
            continue
        cluster = model.cluster.only(used_slots(fleet, space.kinds))
        for together in (True, False):
            placed = place(fleet, space.kinds, cluster, stages_together=together)
            if placed is not None:
                stages = [tuple(StageOf(cluster.node_of(stage.ranks[0]).slot, cluster.node_of(stage.ranks[0]).gpu,
                                        stage.tensor, stage.num_layers) for stage in pipeline.stages)
                          for pipeline in placed]
                for either in (stages, [each[::-1] for each in stages]):
                    if all(_fits(model, each) for each in either):
                        best = min(best, model.step_seconds(either, [batch // len(either)] * len(either)))
    return best


def words(pipelines: Pipelines, counts: Sequence[int]) -> str:
    """Return a plan in short."""
    seen: dict[str, list[int]] = {}
    for stages, count in zip(pipelines, counts, strict=True):
        text = " ".join(f"{stage.gpu}{f'x{stage.tensor}' if stage.tensor > 1 else ''}:{stage.layers}"
                        for stage in stages)
        seen.setdefault(text, []).append(count)
    return "; ".join(f"{len(each)} x [{text}] x {'/'.join(map(str, dict.fromkeys(each)))}"
                     for text, each in seen.items())


def compare(name: str) -> dict[str, float | str | None]:
    """Return one row of the table: samples a second of everybody."""
    start, batch, bar, published = CASES[name]
    model = Model(name)
    theirs = choose(model, start, batch)
    seconds, pipelines, counts = ours(model, batch)
    assert all(sum(stage.layers for stage in stages) == model.layers for stages in pipelines) and sum(counts) == batch
    return {"cluster": name, "batch": batch, "bar": bar, "published": published,
            "flashflex": theirs.samples / theirs.seconds if theirs else None,
            "identical": batch / identical(model, batch), "ours": batch / seconds, "plan": words(pipelines, counts)}


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("clusters", nargs="*", default=list(CASES))
    print("| cluster | batch | bar, samples/s | FlashFlex, as run "
          "| FlashFlex, reimplemented | identical pipelines | ours | our plan |")
    print("|---|---|---|---|---|---|---|---|")
    for name in parser.parse_args().clusters:
        row = compare(name)
        figures = [f"{row[key]:.3f}" if row[key] is not None else "-"
                   for key in ("bar", "published", "flashflex", "identical", "ours")]
        print(f"| {name} | {row['batch']} | {' | '.join(figures)} | {row['plan']} |", flush=True)


if __name__ == "__main__":
    main()
