"""An explanation for people."""

from __future__ import annotations

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from holmes_hpc.planner.cost.rank_memory import USABLE_FRACTION
from holmes_hpc.planner.telling.explain import Explanation
from holmes_hpc.planner.telling.limits import Limits
from holmes_hpc.planner.telling.memory import usable_words
from holmes_hpc.values import Plan
from holmes_hpc.words import numbers

_PARTS = {"fixed": "the device context and libraries", "optimizer": "the optimizer's moments"}


def render_explanation(explanation: Explanation, plan: Plan) -> list[RenderableType]:
    """Return what limits a plan, what could be changed, and its memory by parts."""
    parts: list[RenderableType] = [Text(line) for line in limit_lines(explanation.limits, plan)]
    if explanation.changes:
        parts.append(Text("what you could change (tokens/s of the same layout, predicted again):"))
        parts += [Text(f"  {change.words}: +{100 * change.gain:.1f} %") for change in explanation.changes]
    return [*parts, Text(""), _memory(explanation.limits)]


def limit_lines(limits: Limits, plan: Plan) -> tuple[str, str]:
    """Return two lines: where the time goes, and what is fullest."""
    mean = limits.mean
    time = (f"limited by {limits.limited_by}; ranks compute {_percent(mean.compute)} of the step (mean; rank "
            f"{limits.busiest_rank} {_percent(limits.busiest_share)}), wait {_percent(mean.neighbours)} for other "
            f"stages and {_percent(mean.sums)} for sums of gradients and gathers of parameters")
    link = ""
    if limits.links:
        words, share = limits.links[0]
        link = f"busiest link: {words}, {_percent(share)} of the step; "
    row, place = limits.memory[0], plan.ranks[limits.peak]
    return time, (f"{link}fullest memory: rank {limits.peak} on {place.node or place.slot} ({place.gpu}), "
                  f"{row.total_gib:.1f} GiB, {usable_words(row.capacity_gib)}, most of it "
                  f"{_PARTS.get(limits.peak_part, limits.peak_part)}")


def _memory(limits: Limits) -> Table:
    names = list(limits.memory[0].parts)
    table = Table(title="memory, GiB a rank", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
                  pad_edge=False)
    for column in ("ranks", *names, "total", "usable", "of"):
        table.add_column(column, overflow="fold", justify="left" if column == "ranks" else "right")
    for row in limits.memory:
        table.add_row(numbers(row.ranks), *(f"{row.parts[name]:.2f}" for name in names), f"{row.total_gib:.2f}",
                      f"{row.capacity_gib * USABLE_FRACTION:.1f}", f"{row.capacity_gib:.1f}")
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
