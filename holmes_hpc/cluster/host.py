"""The machine under our feet: how fast one of its cores multiplies matrices, and how much memory it has.

Speeds are measured in a child process whose libraries may use one thread only: inside this process numpy's
library has chosen its number of threads already, and a rank of the emulated cluster has one core.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from holmes_hpc.bounded import TooMuchOutputError, run_bounded
from holmes_hpc.cluster.kept_speed import keep_speed, read_speed, speed_file
from holmes_hpc.errors import RunFailedError

_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS",
                             "VECLIB_MAXIMUM_THREADS"), "1")
_LONGEST_SECONDS = 60

# The best of many short runs: other processes only ever slow a run down.
_MEASUREMENT = """
import json, time
import numpy
def best(function, seconds):
    shortest, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        function()
        shortest = min(shortest, time.perf_counter() - start)
    return shortest
size = 512
left = numpy.ones((size, size), numpy.float32)
right, product = left.copy(), left.copy()
source = numpy.ones(2**23, numpy.float32)
target = source.copy()
matmul = best(lambda: numpy.matmul(left, right, out=product), 0.2)
copy = best(lambda: numpy.copyto(target, source), 0.1)
print(json.dumps({"matmul_gflops": 2 * size**3 / matmul / 1e9,
                  "copy_gb_per_second": 2 * source.nbytes / copy / 1e9}))
"""


@dataclass(frozen=True)
class HostSpeed:
    """What one core reaches: float32 matrix products, 10^9 FLOP/s; bytes read and written, 10^9 byte/s."""

    matmul_gflops: float
    copy_gb_per_second: float


_SPEEDS = tuple(field.name for field in dataclasses.fields(HostSpeed))


@functools.cache
def measured_speed() -> HostSpeed:
    """Return the speed of one core of this machine: as an earlier command measured and kept it, else measured now.

    Measuring takes about half a second. The answer stays for this process. Raises RunFailedError when the measuring
    process fails.
    """
    kept = read_speed(_SPEEDS)
    if kept is None:
        kept = dataclasses.asdict(_measure())
        keep_speed(kept)
    return HostSpeed(**kept)


def speed_words() -> str:
    """Say what the measured speed is, where it is kept, and how to measure it anew."""
    speed, path = measured_speed(), speed_file()
    words = f"a core multiplies matrices at {speed.matmul_gflops:.1f} GFLOP/s, "
    if path is None or not path.exists():
        return f"{words}measured by this command and not kept, since {path or 'a home directory'} cannot be written"
    return f"{words}as measured once and kept in {path}; remove that file to measure anew"


def _measure() -> HostSpeed:
    try:
        done = run_bounded([sys.executable, "-c", _MEASUREMENT], _LONGEST_SECONDS, env={**os.environ, **_ONE_THREAD})
        if done.status == 0:
            return HostSpeed(**json.loads(done.output))
    except (subprocess.TimeoutExpired, TooMuchOutputError, OSError, ValueError, TypeError) as error:
        raise RunFailedError(f"the speed of this machine's CPU could not be measured: {error}") from error
    raise RunFailedError("the speed of this machine's CPU could not be measured: "
                         f"{(done.said_text.strip() or 'no message').splitlines()[-1]}; "
                         "check that numpy works in this Python environment")


def host_memory_gib() -> float:
    """Return the memory that processes here may use: what is installed, or the limit of the control group."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    groups = Path("/sys/fs/cgroup")
    limits = [_number(groups / name) for name in ("memory.max", "memory/memory.limit_in_bytes")]
    return min([installed, *(limit for limit in limits if limit)]) / 2**30


def host_cores() -> int:
    """Return the number of CPU cores that this process may use, by affinity and control group."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no control group, or no quota in it: `max 100000`
        return cores


def count_gpus(root: Path = Path("/")) -> int:
    """Count the GPUs that the drivers list: NVIDIA's, and AMD's, among whose nodes CPUs have the id 0.

    `root` stands for another machine's files.
    """
    folder = root / "proc/driver/nvidia/gpus"
    if folder.is_dir():
        return sum(1 for _ in folder.iterdir())
    return sum((_number(path) or 0) > 0 for path in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/gpu_id"))


def _number(path: Path) -> int | None:
    """Return the number in a file; None where the file is missing or says `max`."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
