"""Two plans side by side: layout, layers, groups by network, bytes, prediction, memory, and what of it differs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from rich import box
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from holmes_hpc.planner.error_band import LAYOUT_PERCENT
from holmes_hpc.planner.telling.describe import machine_words
from holmes_hpc.quoting import for_table, for_terminal
from holmes_hpc.values import Pipeline, Plan
from holmes_hpc.words import counted, numbers, seconds_words, shorten

_MOST_KINDS_OF_PIPELINE = 4


@dataclass(frozen=True)
class Compared:
    """One side: its name, its plan, and the median seconds of a measured step where it is a run's."""

    name: str
    plan: Plan
    measured_seconds: float | None = None
    disturbed_seconds: Mapping[str, float] = field(default_factory=dict)
    """of a run that was disturbed on purpose the median of a step by what acted"""
    measured_how: str = ""
    """of a run what has to be said beside its figures: emulated or timed, on a busy machine"""


@dataclass(frozen=True)
class Row:
    """One line of a comparison: words for both, and how many times the first the second is, for figures."""

    label: str
    first: str
    second: str
    ratio: float | None = None

    @property
    def differs(self) -> bool:
        """Whether the two are unlike."""
        return self.first != self.second


def compare(first: Compared, second: Compared) -> tuple[Row, ...]:
    """Return the rows of a comparison, in reading order."""
    a, b = first.plan, second.plan
    rows = [Row(label, of_a, of_b) for (label, of_a), (_, of_b) in zip(_choices(a), _choices(b), strict=True)]
    rows += _joined(_groups(a), _groups(b))
    sent = [{each.network: each.bytes for each in plan.predicted.bytes_by_network} for plan in (a, b)]
    for network in sorted({*sent[0], *sent[1]}):
        # A plan of an older version has none of these figures; one that has some uses no other network.
        told = [each.get(network, 0.0) if each else None for each in sent]
        rows.append(_figure(f"bytes over {network} a step", told[0], told[1], _bytes))
    rows += [
        Row("predicted for", _machine(a), _machine(b)),
        _figure("predicted step", a.predicted.step_seconds, b.predicted.step_seconds, _seconds),
        Row("error of the prediction", _error(a), _error(b)),
        _figure("predicted tokens/s", a.predicted.tokens_per_second, b.predicted.tokens_per_second, "{:,.0f}".format),
        _figure("predicted TFLOPS a GPU", a.predicted.tflops_per_gpu, b.predicted.tflops_per_gpu, "{:.3g}".format),
        _figure("predicted: ranks idle", a.predicted.idle_fraction, b.predicted.idle_fraction, _percent),
    ]
    if first.measured_seconds is not None or second.measured_seconds is not None:
        rows.append(_figure("measured step, median", first.measured_seconds, second.measured_seconds, _seconds))
    for acting in dict.fromkeys((*first.disturbed_seconds, *second.disturbed_seconds)):
        rows.append(_figure(f"measured step, {acting}", first.disturbed_seconds.get(acting),
                            second.disturbed_seconds.get(acting), _seconds))
    peaks = [max(enumerate(plan.predicted.memory_gib_per_rank), key=lambda item: (item[1], -item[0]))
             for plan in (a, b)]
    words = [f"{gib:.1f} GiB (rank {rank})" for rank, gib in peaks]
    ratio = peaks[1][1] / peaks[0][1] if peaks[0][1] else None
    rows.append(Row("most memory of a rank", words[0], words[1], ratio))
    return tuple(rows)


def cautions(first: Plan, second: Plan) -> tuple[str, ...]:
    """Return why the figures of two plans do not compare as they stand, if so."""
    found = []
    if first.predicted.machine != second.predicted.machine:
        found.append("the predictions are for different machines: their seconds do not compare")
    if first.global_batch_size != second.global_batch_size:
        found.append("the global batches differ: compare tokens/s, not seconds")
    if (first.num_layers, first.tied_embeddings) != (second.num_layers, second.tied_embeddings):
        found.append("the models differ: a faster plan of a smaller model is no better plan")
    if not found and _are_level(first, second):
        found.append("the predictions do not tell the two apart: they differ by less than layouts on the same GPUs are "
                     "off by")
    return tuple(found)


def _are_level(first: Plan, second: Plan) -> bool:
    """Whether both predictions are of the same kind, and nearer to one another than such are to measurements."""
    a, b = first.predicted, second.predicted
    allowed = LAYOUT_PERCENT.get(a.error_basis) if a.error_basis == b.error_basis else None
    slower, faster = max(a.step_seconds, b.step_seconds), min(a.step_seconds, b.step_seconds)
    return allowed is not None and faster < slower <= (1 + allowed / 100) * faster


def render_comparison(first: Compared, second: Compared) -> RenderableType:
    """Return the comparison as a table; what differs is bold and marked."""
    rows = compare(first, second)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", first.name, second.name, "second / first", ""):
        table.add_column(for_table(column), overflow="fold")
    for row in rows:
        ratio = "" if row.ratio is None else f"{row.ratio:.3g}"
        mark = "differs" if row.differs else ""
        table.add_row(row.label, for_table(row.first), for_table(row.second), ratio, mark,
                      style="bold" if row.differs else "")
    last = [] if any(row.differs for row in rows) else ["nothing differs"]
    notes = [*cautions(first.plan, second.plan),
             *(f"{for_terminal(each.name)} is a run: {each.measured_how}" for each in (first, second)
               if each.measured_how)]
    return Lines(table, *(Text(f"note: {note}") for note in notes), *map(Text, last))


def _choices(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield what was chosen, in the same order for every plan."""
    depth = max(len(pipeline.stages) for pipeline in plan.pipelines)
    chosen = plan.schedule
    yield "strategy", plan.strategy
    yield "ranks", f"{plan.world_size} on {counted(len({place.slot for place in plan.ranks}), 'node')}"
    yield "fabrics", "\n".join(_fabrics(plan))
    yield "pipelines", f"{len(plan.pipelines)} of {'up to ' * _unlike(plan)}{counted(depth, 'stage')}"
    yield "layers by stage", "\n".join(_kinds(plan, lambda p: "+".join(str(s.num_layers) for s in p.stages)))
    yield "tensor degree by stage", "\n".join(_kinds(plan, lambda p: "+".join(str(s.tensor) for s in p.stages)))
    yield "fabrics by stage", "\n".join(_kinds(plan, lambda p: _stage_fabrics(plan, p)))
    yield "ranks of the first pipeline", " > ".join(numbers(stage.ranks) for stage in plan.pipelines[0].stages)
    yield "micro-batches by pipeline", "\n".join(_kinds(plan, lambda p: str(p.microbatches)))
    yield "batch", f"{plan.global_batch_size} in micro-batches of {plan.micro_batch_size}"
    extras = [f"+{chosen.warmup_extra} warm-up"] * bool(chosen.warmup_extra) + ["turns"] * chosen.turns
    extras += [f"{chosen.chunks} chunks"] * (chosen.chunks > 1)
    yield "schedule", ", ".join([chosen.name, *extras])
    yield "layer split", plan.layer_split
    yield "tied embeddings", "yes" if plan.tied_embeddings else "no"
    yield "recomputation", plan.recompute
    yield "sequence parallel", "yes" if plan.sequence_parallel else "no"


def _unlike(plan: Plan) -> bool:
    return len({len(pipeline.stages) for pipeline in plan.pipelines}) > 1


def _fabrics(plan: Plan) -> Iterator[str]:
    for fabric in dict.fromkeys(place.fabric for place in plan.ranks):
        ranks = [place.rank for place in plan.ranks if place.fabric == fabric]
        slots = dict.fromkeys(plan.ranks[rank].node or plan.ranks[rank].slot for rank in ranks)
        gpus = "/".join(dict.fromkeys(plan.ranks[rank].gpu for rank in ranks))
        yield f"{fabric}: ranks {numbers(ranks)} on {shorten(slots)}, {gpus}"


def _kinds(plan: Plan, words: Callable[[Pipeline], str]) -> list[str]:
    """Return what is said of every pipeline, each wording once with how many pipelines it holds for."""
    counts = Counter(words(pipeline) for pipeline in plan.pipelines)
    if len(counts) == 1:
        return list(counts)
    said = [f"{count} x {text}" for text, count in counts.items()]
    more = len(said) - _MOST_KINDS_OF_PIPELINE
    return said if more <= 0 else [*said[:_MOST_KINDS_OF_PIPELINE], f"and {more} more kinds"]


def _stage_fabrics(plan: Plan, pipeline: Pipeline) -> str:
    return " > ".join("+".join(dict.fromkeys(plan.ranks[rank].fabric for rank in stage.ranks))
                      for stage in pipeline.stages)


def _groups(plan: Plan) -> dict[str, str]:
    """Return, by kind and network, how many groups there are, of how many ranks."""
    sizes: dict[tuple[str, str], list[int]] = {}
    for group in plan.groups:
        sizes.setdefault((group.kind, group.network), []).append(len(group.ranks))
    return {f"{kind} groups over {network}": f"{len(each)} of {'/'.join(map(str, sorted(set(each))))} ranks"
            for (kind, network), each in sizes.items()}


def _joined(first: Mapping[str, str], second: Mapping[str, str]) -> list[Row]:
    return [Row(label, first.get(label, "none"), second.get(label, "none"))
            for label in sorted({**first, **second})]


def _figure(label: str, first: float | None, second: float | None, words: Callable[[float], str]) -> Row:
    told = ["unknown" if value is None else words(value) for value in (first, second)]
    return Row(label, told[0], told[1], ratio=second / first if first and second is not None else None)


def _machine(plan: Plan) -> str:
    return machine_words(plan)


def _error(plan: Plan) -> str:
    percent = plan.predicted.error_percent
    return "unknown" if percent is None else f"± {percent:g} % ({plan.predicted.error_basis})"


def _seconds(seconds: float) -> str:
    return seconds_words(seconds, 4)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count:.0f} B"
