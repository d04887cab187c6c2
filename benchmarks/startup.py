"""How long the commands that need no torch take to start and end, beside composing alone.

    python -m benchmarks.startup [--calls N]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 1.5
COMMANDS = {
    "holmes --help": ["-m", "holmes_hpc.cli", "--help"],
    "plan --cfg job +cluster=mixed": ["-m", "holmes_hpc.plan", "--cfg", "job", "+cluster=mixed"],
    "plan +cluster=mixed": ["-m", "holmes_hpc.plan", "+cluster=mixed"],
    "doctor": ["-m", "holmes_hpc.doctor"],
}


def measure(arguments: list[str], calls: int) -> float:
    """Return the median wall time of a command, seconds."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(calls):
            start = time.perf_counter()
            subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, check=True, capture_output=True)
            seconds.append(time.perf_counter() - start)
    return median(seconds)


def main() -> int:
    """Print a line a command; the status is 1 when one takes longer than the limit."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description="How long commands without torch take.")
    parser.add_argument("--calls", type=int, default=5)
    calls = parser.parse_args().calls
    slow = False
    for name, arguments in COMMANDS.items():
        seconds = measure(arguments, calls)
        slow = slow or seconds > LIMIT_SECONDS
        sys.stdout.write(f"{seconds:6.2f} s  {name}{'  (too slow)' if seconds > LIMIT_SECONDS else ''}\n")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
