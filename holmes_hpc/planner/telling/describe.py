"""A plan for people: tables that are read at a glance."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.planner.telling.pipelines import equal_words, pipelines_table, shape_words
from holmes_hpc.planner.telling.printing import plain_table
from holmes_hpc.planner.telling.sums import sums_in_words
from holmes_hpc.quoting import for_table, for_terminal
from holmes_hpc.values import Plan, Prediction
from holmes_hpc.words import counted, numbers, seconds_words, shorten

_MACHINES = {"emulated": "this machine, emulating the cluster", "local": "this machine, all ranks as plain processes",
             "described": "the cluster as described"}


def render(plan: Plan, cluster: ClusterDescription, limits: Sequence[RenderableType] = ()) -> RenderableType:
    """Return the plan as tables: fabrics, pipelines, what limits it, groups, rejected alternatives."""
    parts: list[RenderableType] = [_headline(plan), _fabrics(plan, cluster), pipelines_table(plan), *limits,
                                   _groups(plan)]
    parts += [for_table(line) for line in sums_in_words(plan)]
    if plan.rejected:
        parts.append(_rejected(plan))
    notes = [*_place_names(plan), *equal_words(plan), *plan.notes]
    parts += [Text(for_terminal(f"note: {note}"), style="dim") for note in notes]
    return Lines(*parts)


def _place_names(plan: Plan) -> list[str]:
    """Say what the names of nodes mean in a plan that no machines were given to yet."""
    first = plan.ranks[0]
    if first.node is not None:
        return []
    label = first.slot.rpartition("/")[0]
    return [f"{first.slot} is the first node of the label {label}: an emulated or local run calls it "
            f"{first.slot.replace('/', '-')}, a job of Slurm by its host name"]


def _headline(plan: Plan) -> Text:
    predicted = plan.predicted
    machine = machine_words(plan)
    extra = f" +{plan.schedule.warmup_extra} warm-up" if plan.schedule.warmup_extra else ""
    text = Text()
    text.append(f"{plan.strategy}", style="bold")
    text.append(f": {counted(plan.world_size, 'rank')}, {counted(len(plan.pipelines), 'pipeline')}, "
                f"{plan.schedule.name}{extra}, batch {plan.global_batch_size} in micro-batches of "
                f"{plan.micro_batch_size}, layers {plan.layer_split}"
                f"{_options(plan)}\n")
    text.append(for_terminal(shape_words(plan)) + "\n")
    text.append(f"predicted for {machine}: ")
    text.append(f"{seconds_words(predicted.step_seconds)} a step{error_words(predicted)}", style="bold")
    idle = predicted.idle_fraction
    computing = "" if idle is None else f", ranks compute {100 * (1 - idle):.0f} %"
    text.append(f", {predicted.tokens_per_second:,.0f} tokens/s, {predicted.tflops_per_gpu:.3g} TFLOPS a GPU, at most "
                f"{max(predicted.memory_gib_per_rank):.1f} GiB a rank{computing}")
    return text


def error_words(predicted: Prediction) -> str:
    """Return how far the predicted seconds may be off: ` ± 9 % (fitted)`; nothing for plans that do not say."""
    return "" if predicted.error_percent is None else f" ± {predicted.error_percent:g} % ({predicted.error_basis})"


def machine_words(plan: Plan) -> str:
    """Return what a plan's prediction is for."""
    return _MACHINES.get(plan.predicted.machine, _MACHINES["described"])


def in_a_line(plan: Plan) -> str:
    """Return what a plan is in a few words: strategy, pipelines, schedule and predicted seconds."""
    depths = sorted({len(pipeline.stages) for pipeline in plan.pipelines})
    stages = "-".join(map(str, dict.fromkeys((depths[0], depths[-1])))) + (" stage" if depths == [1] else " stages")
    count = len(plan.pipelines)
    return (f"{plan.strategy}: {counted(plan.world_size, 'rank')}, {counted(count, 'pipeline')} of {stages}, "
            f"{plan.schedule.name}, predicted {seconds_words(plan.predicted.step_seconds)} a step")


def _options(plan: Plan) -> str:
    sequence = ", sequence parallel" if plan.sequence_parallel else ""
    return sequence + (f", {plan.recompute} recomputation" if plan.recompute != "none" else "")


def _fabrics(plan: Plan, cluster: ClusterDescription) -> Table:
    """Return the nodes of the plan, a row for each kind of them in each fabric."""
    table = plain_table("fabrics", "fabric", "nodes", "GPUs", "NIC", "Ethernet", "ranks")
    names = {place.slot: place.node or place.slot for place in plan.ranks}
    order = {fabric: number for number, fabric in enumerate(cluster.fabrics)}
    rows: dict[tuple[str, ...], list[str]] = {}
    for node in sorted(cluster.nodes, key=lambda node: order[node.fabric]):
        if node.slot in names:
            nic = f"{node.nics} x {node.nic}" if node.nics > 1 else node.nic
            kind = (node.fabric, f"{node.gpus} x {node.gpu} a node", f"{nic} ({node.network})",
                    f"{node.ethernet_gbps:g} Gb/s")
            rows.setdefault(kind, []).append(node.slot)
    ranks: dict[str, list[int]] = {}
    for place in plan.ranks:
        ranks.setdefault(place.slot, []).append(place.rank)
    for (fabric, *words), slots in rows.items():
        table.add_row(fabric, shorten(names[slot] for slot in slots), *words,
                      numbers(rank for slot in slots for rank in ranks[slot]))
    return table


def _groups(plan: Plan) -> Table:
    table = plain_table("process groups", "kind", "network", "groups", "ranks each", "for example")
    kinds: dict[tuple[str, str], list[tuple[int, ...]]] = {}
    for group in plan.groups:
        kinds.setdefault((group.kind, group.network), []).append(group.ranks)
    for (kind, network), members in kinds.items():
        sizes = sorted({len(ranks) for ranks in members})
        table.add_row(kind, network, str(len(members)), "/".join(map(str, sizes)), numbers(members[0]))
    return table


def _rejected(plan: Plan) -> Table:
    table = plain_table("rejected", "strategy", "layout", "step", "memory", "reason")
    for other in plan.rejected:
        table.add_row(other.strategy, other.layout, _step(other.predicted), _memory(other.predicted),
                      other.reason)
    return table


def _step(predicted: Prediction | None) -> str:
    return "-" if predicted is None else seconds_words(predicted.step_seconds)


def _memory(predicted: Prediction | None) -> str:
    return "-" if predicted is None else f"{max(predicted.memory_gib_per_rank):.1f} GiB"
