"""Trains on this machine's GPUs and compares with its CPUs: losses, deadlocks, networks, speed, memory.

    tests/gpu/check.sh [--cpu] [--output FOLDER] [CHECK ...]

Each check prints a line: `ok`, `FAILED`, or `not run` with the reason; the last line counts them. The status is 1 where
one failed, or none ran. `--cpu` does the same with CPUs in place of the GPUs, to try the check itself.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tests.gpu import nccl_log

LIMIT_SECONDS = 150
RELATIVE_TOLERANCE = 1e-4
"""Float32 on both: a GPU sums in another order, and what rounding leaves grows over the steps."""
MFU_AIM = 0.45
SMALL = [
    "train.steps=6", "train.global_batch_size=16", "train.validate_every=0", "train.validation_samples=4",
    "train.timeout_seconds=40", "run.pictures=false", "parallel.micro_batch_size=2", "model.num_layers=4",
    "model.hidden_size=64", "model.num_heads=4", "model.sequence_length=64", "optimizer.warmup_steps=2",
    "optimizer.clip_grad_norm=0.5",
]
TIED, UNTIED = "model.tied_embeddings=true", "model.tied_embeddings=false"


def degrees(tensor: int, pipeline: int, *words: str) -> list[str]:
    """Return the overrides of a layout in Megatron's order of ranks."""
    return ["parallel=megatron", f"parallel.tensor={tensor}", f"parallel.pipeline={pipeline}", *words]


LAYOUTS = {
    "data2": degrees(1, 1, TIED),
    "data2-whole-optimizer": degrees(1, 1, UNTIED, "optimizer.sharded=false"),
    "tensor2": degrees(2, 1, TIED),
    "pipeline2-1f1b-tied": degrees(1, 2, TIED, "parallel.schedule=1f1b"),
    "pipeline2-gpipe": degrees(1, 2, UNTIED, "parallel.schedule=gpipe"),
    "pipeline2-zero-bubble": degrees(1, 2, UNTIED, "parallel.schedule=zero_bubble"),
}
"""Each on two ranks."""
DEADLOCKS = {
    "pipeline2-1f1b-tied": (2, LAYOUTS["pipeline2-1f1b-tied"]),
    "pipeline2-chunks": (2, degrees(1, 2, TIED, "parallel.schedule=interleaved", "parallel.chunks=2")),
    "pipeline4-zero-bubble": (4, degrees(1, 4, UNTIED, "parallel.schedule=zero_bubble")),
}
ONE_BILLION = ["model=llama_3_1b", "model.sequence_length=4096", "train.precision=bfloat16", "train.steps=12",
               "train.global_batch_size=8", "parallel.micro_batch_size=2", "train.validate_every=0",
               "train.validation_samples=2", "run.pictures=false"]


class NotRunError(Exception):
    """A check that this machine cannot make."""


@dataclass
class Trained:
    """A run: its folder, the lines that it and NCCL printed."""

    folder: Path
    lines: list[str]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of metrics.jsonl."""
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def plan(self) -> dict[str, Any]:
        """The plan."""
        return json.loads((self.folder / "plan.json").read_text())


@dataclass
class Check:
    """What all checks share: where runs go, and what computes."""

    folder: Path
    on_cpu: bool
    made: dict[tuple[str, ...], Trained] = field(default_factory=dict)

    def train(self, ranks: int, words: list[str], *, on_cpu: bool | None = None, **environment: str) -> Trained:
        """Train in one node of `ranks`; a run of the same words is made once. Raises RuntimeError where it fails."""
        on_cpu = self.on_cpu if on_cpu is None else on_cpu
        kind = ["cluster.gpu=cpu", "launch.backend=gloo"] if on_cpu else [f"cluster.gpu={gpu_kind()}",
                                                                          "launch.backend=nccl"]
        line = [sys.executable, "-m", "holmes_hpc.train", "+cluster=uniform", "cluster.nodes=1",
                f"cluster.gpus_per_node={ranks}", "launch.mode=local", f"run.folder={self.folder / 'runs'}", *kind,
                *words]
        key = (*line, *sorted(environment.items()))
        if key not in self.made:
            log = self.folder / f"nccl-{len(self.made)}.log"
            told = {} if on_cpu else {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{log}.%p"}
            if not on_cpu and ranks > gpus():
                told["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
            before = set((self.folder / "runs").glob("*/*"))
            done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS,
                                  env={**os.environ, **told, **environment})
            said = [text for path in sorted(self.folder.glob(f"{log.name}.*")) for text in
                    path.read_text(errors="replace").splitlines()]
            if done.returncode:
                raise RuntimeError(f"{' '.join(line[3:])} ended with {done.returncode}: {done.stderr.strip()[-600:]}")
            made, = set((self.folder / "runs").glob("*/*")) - before
            self.made[key] = Trained(made, [*done.stderr.splitlines(), *said])
        return self.made[key]

    def two(self, words: list[str], ranks: int = 2, **environment: str) -> Trained:
        """Train on several ranks, on one GPU where NCCL permits. Raises NotRunError where it does not."""
        try:
            return self.train(ranks, words, **environment)
        except RuntimeError as error:
            found = nccl_log.version(str(error).splitlines())
            if not self.on_cpu and ranks > gpus() and (found is None or found < (2, 30)):
                raise NotRunError(f"{ranks} ranks on {gpus()} GPUs need NCCL 2.30: {str(error)[-200:]}") from error
            raise


def gpus() -> int:
    """Return the number of GPUs here."""
    import torch
    return torch.cuda.device_count()


def gpu_kind() -> str:
    """Return the name in our catalogue of the GPU here; NotRunError where there is none."""
    import torch
    if not torch.cuda.is_available():
        raise NotRunError("torch sees no GPU")
    name = torch.cuda.get_device_name(0).lower()
    kinds = {"h200": "h200", "h100": "h100", "a100-sxm4-80": "a100-80g", "a100": "a100-40g", "v100": "v100"}
    found = next((kind for part, kind in kinds.items() if part in name), None)
    if found is None:
        raise NotRunError(f"no kind of ours is known for {name}")
    return found


def losses(check: Check) -> str:
    """One rank, and six layouts of two, train as one process on the CPU does."""
    worst, told = 0.0, []
    for name, words in {"one": [TIED], **LAYOUTS}.items():
        tied = TIED if TIED in words else UNTIED
        expected = check.train(1, [*SMALL, tied], on_cpu=True).rows
        try:
            rows = check.train(1, [*SMALL, tied]).rows if name == "one" else check.two([*SMALL, *words]).rows
        except NotRunError as error:
            told.append(f"{name} not run: {error}")
            continue
        apart = max(abs(a[key] / b[key] - 1) for a, b in zip(rows, expected, strict=True)
                    for key in ("loss", "grad_norm"))
        if apart > RELATIVE_TOLERANCE:
            raise RuntimeError(f"{name}: losses or norms differ by {apart:.2g} from the CPU's")
        worst = max(worst, apart)
        told.append(name)
    return f"{', '.join(told)}: at most {worst:.2g} from one process on the CPU"


def deadlocks(check: Check) -> str:
    """Layouts that wait for each other for ever where NCCL's rules are broken come to their end."""
    return ", ".join(f"{name} in {check.two([*SMALL, *words], ranks).rows[-1]['step']} steps"
                     for name, (ranks, words) in DEADLOCKS.items())


def networks(check: Check) -> str:
    """Channels go by memory inside the node, and by a network where that is forbidden; NCCL's own log says so."""
    if check.on_cpu:
        raise NotRunError("NCCL alone says what its channels go by")
    inside = check.two([*SMALL, *LAYOUTS["data2"]]).lines
    outside = check.two([*SMALL, *LAYOUTS["data2"]], NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1").lines
    by_memory, by_network = nccl_log.transports(inside), nccl_log.transports(outside)
    words = (f"planned inside the node: {dict(by_memory)}; with P2P and SHM off: {dict(by_network)}, "
             f"{dict(nccl_log.networks(outside))}")
    if not set(by_memory) & {"P2P", "SHM"} or not by_network or not all(name[:4] == "NET/" for name in by_network):
        raise RuntimeError(words)
    return words


def speed(check: Check) -> str:
    """A model of 1B in bfloat16 on one GPU: model FLOPs per second, as a share of the peak."""
    words = [*SMALL, "train.steps=12"] if check.on_cpu else ONE_BILLION
    rows = check.train(1, words).rows
    reached = median(row["mfu"] for row in rows[4:])
    tokens = median(row["tokens_per_second"] for row in rows[4:])
    if not check.on_cpu and reached < MFU_AIM:
        raise RuntimeError(f"MFU {reached:.1%} ({tokens:,.0f} tokens/s), aim {MFU_AIM:.0%}")
    return f"MFU {reached:.1%}, {tokens:,.0f} tokens/s, aim {MFU_AIM:.0%}"


def memory(check: Check) -> str:
    """The memory that the plan says is what torch takes, within a fifth."""
    made = check.train(1, [*SMALL, "train.steps=12"] if check.on_cpu else ONE_BILLION)
    planned = made.plan["predicted"]["memory_gib_per_rank"][0]
    measured, = [row["memory_gib_per_rank"] for row in made.rows if row.get("memory_gib_per_rank")][-1]
    words = f"planned {planned:.2f} GiB, measured {measured:.2f}"
    if not check.on_cpu and not 0.8 < measured / planned < 1.2:
        raise RuntimeError(words)
    return words


CHECKS: dict[str, Callable[[Check], str]] = {
    each.__name__: each for each in (losses, deadlocks, networks, speed, memory)}


def main(arguments: list[str] | None = None) -> int:
    """Make the checks, and return the status."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="tests/gpu/check.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", choices=[[], *CHECKS], metavar="CHECK", help=", ".join(CHECKS))
    parser.add_argument("--cpu", action="store_true", help="CPUs in place of GPUs, to try the check itself")
    parser.add_argument("--output", type=Path, help="folder for the runs and result.json (default: a temporary one)")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = (given.output or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        check, ends = Check(folder, given.cpu), {}
        for name in given.checks or CHECKS:
            try:
                ends[name] = ("ok", CHECKS[name](check))
            except NotRunError as error:
                ends[name] = ("not run", str(error))
            except (RuntimeError, subprocess.TimeoutExpired, OSError, LookupError, ValueError) as error:
                ends[name] = ("FAILED", f"{type(error).__name__}: {error}")
            sys.stdout.write(f"{name}: {': '.join(ends[name])}\n")
            sys.stdout.flush()
        (folder / "result.json").write_text(json.dumps(ends, indent=1))
    counted = {word: sum(end[0] == word for end in ends.values()) for word in ("ok", "FAILED", "not run")}
    sys.stdout.write(", ".join(f"{count} {word}" for word, count in counted.items()) + "\n")
    return int(counted["FAILED"] > 0 or counted["ok"] == 0)


if __name__ == "__main__":
    sys.exit(main())
