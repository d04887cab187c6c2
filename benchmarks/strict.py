"""Trains every layout of the equality suite, and drawn plans, by NCCL's rules on CPUs, beside gloo.

    python -m benchmarks.strict                      all layouts by the rules that always hold and the first use held
    python -m benchmarks.strict --modes all          and by each of the harder rules
    python -m benchmarks.strict --plans 100          drawn plans instead, each by all rules at once, by its own seed

A line each: the largest relative difference of losses and norms, or the report of what went wrong. Exit status 1 where
something did, or where a difference is over 1e-7.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from holmes_hpc.cluster.nccl import DEFAULTS
from tests.engine_worlds import train_world
from tests.strict.random_plans import random_plan
from tests.strict.rules import ALL, FIRST, Rules
from tests.strict.worlds import RELATIVE, StrictError, difference, train_strictly
from tests.test_equality import COMMON, LAYOUTS

QUEUES = int(DEFAULTS["CUDA_DEVICE_MAX_CONNECTIONS"])

MODES = {
    "first use held": Rules(hold=FIRST),
    "every collective held": Rules(hold=ALL),
    "8 queues": Rules(queues=8),
    "4 queues": Rules(queues=4),
    "4 resident": Rules(resident=4),
    "ends seen late": Rules(seen=0.3, jitter_seconds=0.002),
    "host ahead": Rules(ahead=True, jitter_seconds=0.001),
}


def together(seed: int) -> Rules:
    """Return all of the rules at once."""
    return Rules(ahead=True, hold=FIRST, queues=QUEUES, resident=8, seen=0.5, jitter_seconds=0.001, seed=seed)


def runs(arguments: argparse.Namespace) -> Iterator[tuple[str, list[str], dict[str, Rules]]]:
    """Yield what is asked for: a name, the overrides, and the rules by their names."""
    if arguments.plans:
        for seed in range(arguments.first, arguments.first + arguments.plans):
            yield f"plan {seed}", random_plan(seed), {
                f"together, seed {seed + each}": together(seed + each) for each in range(arguments.seeds)}
        return
    chosen = MODES if arguments.modes == "all" else {arguments.modes: MODES[arguments.modes]}
    for name in arguments.layouts:
        yield name, [*COMMON, *LAYOUTS[name], "train.steps=2"], {
            f"{mode}, seed {each}" if each else mode: dataclasses.replace(rules, seed=each)
            for mode, rules in chosen.items() for each in range(arguments.seeds)}


def main() -> int:
    """Read the arguments, train, and say what differs."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plans", type=int, default=0, help="so many drawn plans")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first of them")
    parser.add_argument("--modes", default="first use held", choices=["all", *MODES])
    parser.add_argument("--layouts", nargs="*", default=list(LAYOUTS), choices=LAYOUTS, metavar="NAME")
    parser.add_argument("--seeds", type=int, default=1, help="train each so often, by so many seeds of the device's")
    worst, failed, count = 0.0, 0, 0
    with tempfile.TemporaryDirectory() as kept:
        for name, overrides, modes in runs(parser.parse_args()):
            folder = Path(kept, name.replace(" ", "-"))
            folder.mkdir()
            expected = train_world(folder, overrides)
            for mode, rules in modes.items():
                count += 1
                try:
                    found = difference(train_strictly(folder / mode.replace(" ", "-"), overrides, rules), expected)
                except StrictError as error:
                    failed += 1
                    sys.stdout.write(f"{name}, {mode}: {error}\n{overrides}\n")
                    continue
                worst = max(worst, found)
                sys.stdout.write(f"{name}, {mode}: {found:.1e}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{count} runs, {failed} failed; largest difference from gloo {worst:.1e}\n")
    return int(failed > 0 or worst > RELATIVE)


if __name__ == "__main__":
    sys.exit(main())
