"""The export of a checkpoint of the size of a 7B: seconds beside a plain copy of the same bytes, and memory.

The checkpoint is of zeros, a hole in a file: reading it costs no disk, but the pages of zeros that the system makes, so
that is timed by itself. What the export writes is written in full, and so is the copy of it; both are brought to disk
before the clock stops. It needs 27 GiB of room for a while. Seconds of the CPU (user and system) are less swayed by
other programs than those of the clock.

    python -m benchmarks.export_speed [MODEL]    (a preset of conf/model; default: llama_7b)
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

from holmes_hpc.architecture import Architecture
from holmes_hpc.checkpoint.index import Index, Shard, pack_index
from holmes_hpc.checkpoint.model import model_description
from holmes_hpc.config.compose import compose
from holmes_hpc.runs import RunFolder

MOST_MEMORY_GIB = 2.0
WEIGHTS = "zeros.safetensors"
_PIECE_BYTES = 64 * 2**20
_COPY_BYTES = 16 * 2**20


def main() -> int:
    """Run the benchmark; return 1 where the export takes more memory than its bound."""
    name = sys.argv[1] if sys.argv[1:] else "llama_7b"
    model = Architecture.from_config(compose(["+cluster=mixed", f"model={name}"]).model)
    size = model.parameter_count() * 2
    with tempfile.TemporaryDirectory() as place:
        free = shutil.disk_usage(place).free
        if free < 2.1 * size:
            print(f"skipped: {place} has {free / 2**30:.1f} GiB of room, and {2.1 * size / 2**30:.1f} are needed")
            return 0
        folder = RunFolder.create(Path(place), "run", {"config.yaml": "{}"})
        zeros_checkpoint(folder.checkpoints / "step-000001", model)
        out = Path(place, "out")
        weights = folder.checkpoints / "step-000001" / WEIGHTS
        with Clock() as reading:
            read(weights)
        exporting, memory_gib, status = export(folder.path, out)
        if status:
            return 1
        with Clock() as copying:
            copy(out, Path(place, "copy"))
    print(f"{name}, {model.parameter_count():,} parameters in float32, exported as bfloat16 ({size / 2**30:.1f} GiB)")
    for what, clock in (("export", exporting), ("plain copy of what it wrote", copying),
                        ("the checkpoint read alone", reading)):
        print(f"{what}: {clock.seconds:.1f} s, of the CPU {clock.cpu_seconds:.1f} s")
    print(f"resident memory of the export {memory_gib:.2f} GiB (bound: {MOST_MEMORY_GIB:g})")
    return 0 if memory_gib < MOST_MEMORY_GIB else 1


class Clock:
    """Seconds, and those of this process on the CPU, between the begin and the end of a context."""

    def __init__(self, seconds: float = 0.0, cpu_seconds: float = 0.0) -> None:
        self.seconds, self.cpu_seconds = seconds, cpu_seconds

    def __enter__(self) -> Clock:
        self.seconds, self.cpu_seconds = time.monotonic(), time.process_time()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds, self.cpu_seconds = time.monotonic() - self.seconds, time.process_time() - self.cpu_seconds


def zeros_checkpoint(path: Path, model: Architecture) -> None:
    """Make a checkpoint of zeros whose data file is one hole."""
    path.mkdir(parents=True)
    shards, begin = [], 0
    checksums: dict[int, int] = {}
    for info in model.parameters():
        row = info.count // info.shape[0] * 4
        rows = max(1, _PIECE_BYTES // row)
        for first in range(0, info.shape[0], rows):
            count = min(rows, info.shape[0] - first)
            size = count * row
            if size not in checksums:
                checksums[size] = zlib.crc32(bytes(size))
            rest = (0,) * (len(info.shape) - 1)
            shards.append(Shard(f"model/{info.name}", info.shape, (first, *rest), (count, *info.shape[1:]), "float32",
                                WEIGHTS, begin, size, checksums[size]))
            begin += size
    with (path / WEIGHTS).open("wb") as file:
        file.truncate(begin)
    index = Index(1, {WEIGHTS: begin}, tuple(shards), {"model": model_description(model)})
    (path / "checkpoint.json").write_text(pack_index(index))


def export(run: Path, out: Path) -> tuple[Clock, float, int]:
    """Export by the command; return its seconds, its largest resident memory in GiB, and its status."""
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "holmes_hpc.export", str(run), "--to", str(out), "--dtype",
                                "bfloat16"])
    _, status, usage = os.wait4(process.pid, 0)
    clock = Clock(time.monotonic() - began, usage.ru_utime + usage.ru_stime)
    return clock, usage.ru_maxrss / 2**20, os.waitstatus_to_exitcode(status)


def read(path: Path) -> None:
    """Read a file once."""
    room = bytearray(_COPY_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(room):
            pass


def copy(folder: Path, to: Path) -> None:
    """Copy the weights of a folder, file by file, and bring them to disk."""
    to.mkdir()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as source, (to / path.name).open("xb") as target:
            shutil.copyfileobj(source, target, _COPY_BYTES)
            target.flush()
            os.fsync(target.fileno())


if __name__ == "__main__":
    sys.exit(main())
