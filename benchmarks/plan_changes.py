"""Why plans changed: of two sets of plans each one that differs, both layouts under the prices of now, and the cause.

    python -m benchmarks.plan_digests write FOLDER     at both commits
    python -m benchmarks.plan_changes BEFORE AFTER

The layout of before is simulated again by the code that runs. The causes:

    words     the same layout, groups and step; strategies' names, alternatives or notes differ
    groups    the same layout and step; the plan names its groups and sums otherwise
    prices    the same layout, whose step is priced otherwise; or another layout, where the one of before is now priced
              otherwise and is slower
    search    another layout, faster than the one of before, whose price did not change: found by estimates and search
    slower    another layout, slower than the one of before under the prices of now
    refusals  refused before or after
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.plan_digests import planning_here
from holmes_hpc.config.compose import compose
from holmes_hpc.planner.simulation.predict import predict
from holmes_hpc.planner.telling.restore import restore
from holmes_hpc.values import Plan
from holmes_hpc.words import seconds_words

ALIKE = 1e-3
"""Steps that differ by less, as a fraction, are called alike: rounding, and the whole units of an order by times."""
CAUSES = ("words", "groups", "prices", "search", "slower", "refusals")


@dataclass(frozen=True)
class Change:
    """A plan that differs. `then` is the predicted step of the layout of before; `now` and `new` are of today."""

    name: str
    cause: str
    before: str
    after: str
    then: float | None = None
    now: float | None = None
    new: float | None = None

    @property
    def gain_percent(self) -> float:
        """How much shorter the step is than that of the layout of before, both by the prices of now."""
        return 100 * (self.now - self.new) / self.now if self.now and self.new else 0.0


def changes(before: Path, after: Path) -> Iterator[Change]:
    """Yield what changed between two folders of plans, in the order of their names."""
    for path in sorted(before.glob("*.json")):
        other = after / path.name
        if other.exists() and path.read_text() != other.read_text():
            yield _change(path.stem, path.read_text(), other.read_text())


def _change(name: str, before: str, after: str) -> Change:
    refused = ["refused" in json.loads(text) for text in (before, after)]
    if any(refused):
        said = ["refused" if no else _layout(Plan.from_json(text))
                for text, no in zip((before, after), refused, strict=True)]
        return Change(name, "words" if all(refused) else "refusals", *said)
    old, new = Plan.from_json(before), Plan.from_json(after)
    config = compose(_overrides(name))
    task, layout = restore(config, old)
    now = predict(task, layout, old.schedule).step_seconds
    then, seconds = old.predicted.step_seconds, new.predicted.step_seconds
    same_price = abs(now - then) <= ALIKE * then
    if _what_runs(old) == _what_runs(new):
        cause = "prices" if not same_price else "words" if _groups(old) == _groups(new) else "groups"
    elif seconds > now * (1 + ALIKE):
        cause = "slower"
    else:
        cause = "search" if same_price else "prices"
    return Change(name, cause, _layout(old), _layout(new), then, now, seconds)


def _overrides(name: str) -> list[str]:
    return name.split(" ")


def _what_runs(plan: Plan) -> tuple[object, ...]:
    choice = dataclasses.replace(plan.schedule, digest="", stage_times=(), hop_times=())
    return plan.pipelines, plan.micro_batch_size, choice, plan.synchronization, plan.recompute, plan.sequence_parallel


def _groups(plan: Plan) -> tuple[object, ...]:
    return plan.groups, plan.reductions


def _layout(plan: Plan) -> str:
    """Return pipelines as `2 x [4 5|2]x8`: layers, ranks of tensor groups and micro-batches; then size and schedule."""
    alike = Counter((tuple((stage.num_layers, stage.tensor) for stage in pipeline.stages), pipeline.microbatches)
                    for pipeline in plan.pipelines)
    pipelines = ", ".join(
        f"{count} x [{' '.join(f'{n}' if tensor == 1 else f'{n}|{tensor}' for n, tensor in stages)}]x{batches}"
        for (stages, batches), count in alike.items())
    choice = plan.schedule
    extra = f"+{choice.warmup_extra}" if choice.warmup_extra else "+hops" if choice.hop_warmups else ""
    turns = ", turns" if choice.turns else ""
    return f"{pipelines}, size {plan.micro_batch_size}, {choice.name}{extra}{turns}"


def table(found: list[Change]) -> Iterator[str]:
    """Yield the lines of a Markdown table of the changes that changed what runs or how fast it is, then a summary."""
    yield "| plan | cause | layout before | after | step before, then | now | after | shorter, % |"
    yield "|---|---|---|---|---|---|---|---|"
    for each in found:
        if each.cause in ("words", "groups"):
            continue
        steps = ["-" if seconds is None else seconds_words(seconds) for seconds in (each.then, each.now, each.new)]
        after = "the same" if each.after == each.before else each.after
        yield " | ".join((f"| {each.name}", each.cause, each.before, after, *steps, f"{each.gain_percent:.1f} |"))
    yield ""
    yield from summary(found)


def summary(found: list[Change]) -> Iterator[str]:
    """Yield how many plans changed by each cause, and the medians and ends of what that gained."""
    by_cause = defaultdict(list)
    for each in found:
        by_cause[each.cause].append(each.gain_percent)
    yield "| cause | plans | shorter by the prices of now, %: least | median | most |"
    yield "|---|---|---|---|---|"
    for cause in CAUSES:
        gains = sorted(by_cause[cause])
        if gains:
            yield f"| {cause} | {len(gains)} | {gains[0]:.1f} | {gains[len(gains) // 2]:.1f} | {gains[-1]:.1f} |"


def main() -> int:
    """Compare two folders of plans and print what changed."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("before", nargs="?", type=Path)
    parser.add_argument("after", nargs="?", type=Path)
    parser.add_argument("--summary", action="store_true", help="only how many, by cause")
    arguments = parser.parse_args()
    if arguments.after is None:
        parser.print_help()
        return 0
    with planning_here():
        found = list(changes(arguments.before, arguments.after))
    print("\n".join(summary(found) if arguments.summary else table(found)))
    same = sum(1 for path in arguments.before.glob("*.json") if (arguments.after / path.name).exists()) - len(found)
    print(f"\n{same} plans are the same to the byte.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
