"""The search against every layout of small problems: the table of docs/planner.md.

    python -m benchmarks.optimality [NUMBER ...]
"""

from __future__ import annotations

import argparse
import time

from holmes_hpc.planner.search import search
from tests.brute_force import BruteForce
from tests.planner_problems import SMALL


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("numbers", nargs="*", type=int, default=list(range(len(SMALL))))
    print("| problem | GPUs | auto, ms | best of all layouts, ms | gap, % | layouts | simulated | search, s |")
    print("|---|---|---|---|---|---|---|---|")
    for number in parser.parse_args().numbers:
        problem = SMALL[number]
        task = problem.task()
        start = time.process_time()
        found, _ = search(task)
        seconds = time.process_time() - start
        every = BruteForce(task)
        least = every.faster_than(found.seconds)
        print(f"| {problem.name} | {task.cluster.world_size} | {1e3 * found.seconds:.2f} | {1e3 * least:.2f} | "
              f"{100 * (found.seconds / least - 1):.2f} | {every.looked_at} | {every.priced} | "
              f"{seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
