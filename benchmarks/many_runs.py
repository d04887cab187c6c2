"""How long tables and the page of many runs take, and what keeping parsed steps saves.

    python -m benchmarks.many_runs [--runs 200] [--steps 2000]

Runs are copies of one that is made up. Where pyarrow is missing nothing is kept.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.run_folders import make_run, metric


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
        runs = _make(Path(folder) / "runs", arguments.runs, arguments.steps)
        _measure(runs, arguments.runs, arguments.steps)
    return 0


def _make(base: Path, count: int, steps: int) -> Path:
    done = {"status": "completed", "steps": steps, "final_loss": 2.0, "error": None, "emulated": True}
    rows = [metric(step, 0.1 + step % 7 / 1000) for step in range(1, steps + 1)]
    first = make_run(base, "20261201-000000-a000", metrics=rows, timeline_steps=[50], result=done)
    for number in range(1, count):
        shutil.copytree(first, first.with_name(f"20261201-{number:06d}-a{number:03d}"))
    return base


def _measure(runs: Path, count: int, steps: int) -> None:
    from analysis.page.document import page
    from analysis.reading import read_runs
    from analysis.tables import runs_table

    found = []
    print(f"{count} runs of {steps} steps, seconds of CPU (of helpers too) and of the clock")
    kept = sys.modules.get("pyarrow")
    sys.modules["pyarrow"] = None  # type: ignore[assignment]  # what an import of it takes for missing
    _timed("read, nothing kept", lambda: read_runs(runs))
    if kept is None:
        del sys.modules["pyarrow"]
    else:
        sys.modules["pyarrow"] = kept
    first = _timed("read, and keep", lambda: read_runs(runs))
    again = _timed("read what was kept", lambda: found.extend(read_runs(runs)))
    table = _timed("table", lambda: runs_table(found))
    whole = _timed("page", lambda: page(found))
    for what, seconds in (("table", table), ("page", whole)):
        print(f"  {what}, of the clock: {first + seconds:.1f} the first time, then {again + seconds:.1f}")


def _timed(what: str, call: Callable[[], object]) -> float:
    """Call and print how long it took; return the seconds of the clock."""
    begin, cpu = time.monotonic(), sum(os.times()[:4])
    call()
    seconds = time.monotonic() - begin
    print(f"  {what:20} {sum(os.times()[:4]) - cpu:6.1f} {seconds:6.1f}", flush=True)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
