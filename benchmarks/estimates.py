"""How near the estimates that rank layouts come to the simulation: estimate over first simulation, by form.

    python -m benchmarks.estimates [--most N] [--free] [--verbose]

For several clusters and models every strategy proposes its layouts; the best by their estimates, and some of the rest
at even distances, are simulated with the schedule with which a layout is first looked at. A ratio of 1 is exact. No
extra warm-up is allowed, so that estimate and simulation are of one schedule; with --free the search chooses it, and
an estimate is of what warm-up can reach.
`order` is the share of pairs of layouts of one problem that the estimates put in the order of the simulation, where
those differ by a hundredth or more.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holmes_hpc.config.compose import compose
from holmes_hpc.errors import PlanRefusedError
from holmes_hpc.planner.search.candidate import evaluate_layout
from holmes_hpc.planner.search.catalogue import compared_strategies, degrees_of, propose_by, with_defaults
from holmes_hpc.planner.strategies.proposals import Proposal, SharedStages, UnlikePipelines
from holmes_hpc.planner.task import Task, task_of

LARGER = ("cluster.partitions.ib.gpus_per_node=8", "cluster.partitions.roce.gpus_per_node=8",
          "train.precision=float16", "train.global_batch_size=128")
PROBLEMS = {
    "mixed, tiny": ("+cluster=mixed", "model=gpt_tiny"),
    "mixed, GPT-2": ("+cluster=mixed", "model=gpt2_small", "train.global_batch_size=32"),
    "mixed, 3.6B": ("+cluster=mixed", "model=gpt_3_6b", *LARGER),
    "mixed, Llama 13B": ("+cluster=mixed", "model=llama_13b", *LARGER),
    "mixed_gpus, GPT-2": ("+cluster=mixed_gpus", "model=gpt2_small", "train.precision=float16",
                          "train.global_batch_size=64"),
    "mixed_gpus, Llama 7B": ("+cluster=mixed_gpus", "model=llama_7b", *LARGER),
    "unequal, 7.5B": ("+cluster=mixed_gpus", "model=gpt_7_5b", *LARGER, "cluster.partitions.roce.nodes=6"),
    "one fabric, 3.6B": ("+cluster=uniform", "model=gpt_3_6b", "cluster.nodes=4", "cluster.gpus_per_node=8",
                         "train.precision=float16", "train.global_batch_size=128"),
    "Ethernet, GPT-2": ("+cluster=ethernet", "model=gpt2_small", "train.precision=float16",
                        "train.global_batch_size=64"),
    "slow Ethernet, 1.7B": ("+cluster=mixed", "model=gpt_1_7b", *LARGER, "cluster.partitions.ib.ethernet_gbps=5",
                            "cluster.partitions.roce.ethernet_gbps=5"),
}


@dataclass(frozen=True)
class Compared:
    """A layout's estimate and its first simulation, in seconds, and which form the estimate is of."""

    problem: str
    form: str
    words: str
    estimate: float
    simulated: float

    @property
    def ratio(self) -> float:
        """The estimate over the simulation."""
        return self.estimate / self.simulated


def compare(problem: str, task: Task, most: int) -> Iterator[Compared]:
    """Yield what the estimates of all strategies come to: of each at most `most` layouts that fit into memory."""
    for name in compared_strategies():
        own = with_defaults(task, name)
        for proposal in _spread(_proposals(own, name), most):
            try:
                candidate = evaluate_layout(proposal.task, proposal.facts, proposal.build(),
                                            proposal.facts.micro_batch_size, proposal.rules, proposal.chunks)
            except PlanRefusedError:
                continue
            yield Compared(problem, _form(proposal), str(proposal.facts), proposal.estimate_seconds, candidate.seconds)


def _proposals(task: Task, name: str) -> list[Proposal]:
    """Return the layouts of a strategy, of all tensor-parallel degrees, the best estimates first."""
    found: list[Proposal] = []
    try:
        for tensor in degrees_of(name, task):
            found += propose_by(name, task, tensor, [])
    except PlanRefusedError:
        pass
    return sorted((each for each in found if each.fits), key=lambda each: each.estimate_seconds)


def _spread(proposals: Sequence[Proposal], most: int) -> list[Proposal]:
    """Return half of them from the best, and the others at even distances from the rest; of each form."""
    chosen: list[Proposal] = []
    for form in dict.fromkeys(map(_form, proposals)):
        own = [each for each in proposals if _form(each) == form]
        best, rest = own[:most // 2], own[most // 2:]
        step = max(1, len(rest) // max(1, most - len(best)))
        chosen += best + rest[::step][:most - len(best)]
    return chosen


def _form(proposal: Proposal) -> str:
    facts = proposal.facts
    if isinstance(facts.form, SharedStages):
        return "shared stages"
    return f"fleets of {facts.strategy}" if isinstance(facts.form, UnlikePipelines) else facts.strategy


def order(found: Sequence[Compared]) -> float:
    """Return the share of pairs of one problem that are ordered as the simulation orders them."""
    right = pairs = 0
    for a, b in itertools.combinations(found, 2):
        if a.problem == b.problem and abs(a.simulated / b.simulated - 1) > 0.01:
            pairs += 1
            right += (a.estimate < b.estimate) == (a.simulated < b.simulated)
    return right / max(1, pairs)


def row(label: str, found: Sequence[Compared]) -> str:
    """Return a line of the table."""
    ratios = sorted(each.ratio for each in found)
    tenth = len(ratios) // 10
    off = statistics.mean(abs(ratio - 1) for ratio in ratios)
    return (f"| {label} | {len(ratios)} | {ratios[0]:.3f} | {ratios[tenth]:.3f} | {statistics.median(ratios):.3f} | "
            f"{ratios[-1 - tenth]:.3f} | {ratios[-1]:.3f} | {100 * off:.1f} | {order(found):.3f} |")


def problems(*, free: bool = False) -> Iterator[tuple[str, Task]]:
    """Yield the problems; recomputation is left out, and extra warm-up where the search is not `free` to add it."""
    for problem, overrides in PROBLEMS.items():
        task = task_of(compose(list(overrides)), "slurm")
        settings = task.settings.replace(search_recompute=False)
        yield problem, dataclasses.replace(task, settings=settings if free else settings.replace(warmup_extra=0))


def main() -> None:
    """Print the table as Markdown: by form, then by problem."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--most", type=int, default=12, help="layouts of each form and problem")
    parser.add_argument("--free", action="store_true", help="leave extra warm-up to the search")
    parser.add_argument("--verbose", action="store_true", help="print every layout")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["XDG_CACHE_HOME"] = cache
        found = [each for problem, task in problems(free=arguments.free)
                 for each in compare(problem, task, arguments.most)]
    if arguments.verbose:
        for each in found:
            print(f"{each.ratio:.3f} {each.simulated:.4g} s {each.problem}, {each.form}: {each.words}")
    print("| estimates | layouts | least | 10 % | median | 90 % | most | mean off, % | order |")
    print("|---|---|---|---|---|---|---|---|---|")
    for form in dict.fromkeys(each.form for each in found):
        print(row(form, [each for each in found if each.form == form]))
    for problem in dict.fromkeys(each.problem for each in found):
        print(row(problem, [each for each in found if each.problem == problem]))
    print(row("all", found))


if __name__ == "__main__":
    main()
