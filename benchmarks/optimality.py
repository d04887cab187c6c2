"""The search against every layout of small problems: the table of docs/planner.md.

    python -m benchmarks.optimality [--within PERCENT] [NUMBER ...]

With --within only what is so much faster is looked for, which prunes more: the gap is then at most that.
"""

from __future__ import annotations

import argparse
import time

from holmes_hpc.planner.making import find_best
from tests.brute_force import BruteForce
from tests.planner_problems import SMALL


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("numbers", nargs="*", type=int, default=list(range(len(SMALL))))
    parser.add_argument("--within", type=float, default=0.0)
    arguments = parser.parse_args()
    print("| problem | GPUs | auto, ms | best of all, ms | gap, % | layouts | simulated | search, s | proof, s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for number in arguments.numbers:
        problem = SMALL[number]
        task = problem.task()
        start = time.process_time()
        found, _ = find_best(task)
        seconds = time.process_time() - start
        every = BruteForce(task)
        limit = found.seconds / (1 + arguments.within / 100)
        start = time.process_time()
        least = every.faster_than(limit)
        proof = time.process_time() - start
        best = f"{1e3 * least:.2f}" if least < limit or not arguments.within else "-"
        gap = f"{100 * (found.seconds / least - 1):.2f}" if best != "-" else f"< {arguments.within:g}"
        print(f"| {problem.name} | {task.cluster.world_size} | {1e3 * found.seconds:.2f} | {best} | {gap} | "
              f"{every.looked_at} | {every.priced} | {seconds:.2f} | {proof:.0f} |", flush=True)


if __name__ == "__main__":
    main()
