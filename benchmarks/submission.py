"""How long it takes from the command to a queued job, beside plain `sbatch` of the same script.

    python -m benchmarks.submission [--calls N]

Starts a real Slurm (tests.slurm_cluster), so it needs root and Slurm's packages.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.slurm_cluster import ClusterSettings, SlurmCluster, start_cluster, unavailable_reason

ROOT = Path(__file__).resolve().parent.parent
LIMIT_SECONDS = 1.5
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
COMMAND = [sys.executable, "-m", "holmes_hpc.train", "+cluster=mixed", "launch.wait=false"]


def seconds_to(slurm: SlurmCluster, words: list[str], sign: str) -> tuple[float, float]:
    """Return the seconds from the start of a command to the line that says that its job is queued, and its CPU time."""
    line = slurm.command_line(words, environment=ENVIRONMENT)
    start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        said = []
        for text in process.stdout:
            said.append(text)
            if sign in text:
                seconds = time.perf_counter() - start
                break
        else:
            raise SystemExit(f"{shlex.join(words)} queued no job:\n{''.join(said)}")
        process.stdout.read()
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


Seconds = list[tuple[float, float]]


def measure(slurm: SlurmCluster, calls: int) -> tuple[Seconds, Seconds]:
    """Return the seconds of our command and of plain sbatch, call by call in turn; the jobs are cancelled."""
    ours, plain = [], []
    for _ in range(calls):
        ours.append(seconds_to(slurm, COMMAND, "submitted job"))
        script = max(slurm.shared.glob("runs/*/*/submission/[0-9]*.sh"), key=lambda path: path.stat().st_mtime)
        plain.append(seconds_to(slurm, ["sbatch", str(script)], "Submitted batch job"))
        slurm.run("scancel --user=root")
    return ours, plain


def _wall(seconds: Seconds) -> float:
    return median(wall for wall, _ in seconds)


def main() -> int:
    """Print both medians and their difference; the status is 1 when that is above the limit."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description="How long a submission takes beside plain sbatch.")
    parser.add_argument("--calls", type=int, default=7)
    calls = parser.parse_args().calls
    settings = ClusterSettings()
    reason = unavailable_reason(settings)
    if reason:
        print(f"skipped: {reason}")
        return 0
    with tempfile.TemporaryDirectory() as folder, start_cluster(settings, Path(folder)) as slurm:
        ours, plain = measure(slurm, calls)
    for seconds, words in ((plain, "sbatch of the same script"), (ours, shlex.join(COMMAND[2:]))):
        print(f"{_wall(seconds):6.2f} s  (CPU {median(cpu for _, cpu in seconds):.2f} s)  {words}")
    more = _wall(ours) - _wall(plain)
    verdict = "  (too slow)" if more > LIMIT_SECONDS else ""
    print(f"{more:6.2f} s  more, of at most {LIMIT_SECONDS} s{verdict}; medians of {calls} calls, "
          f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return int(more > LIMIT_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
