"""The check for machines with GPUs: what it reads of NCCL's log, when it fails, and all of it on CPUs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import check, nccl_log
from tests.runs_for_tests import ROOT

LOG = """\
n1:7:7 [0] NCCL INFO cudaDriverVersion 13000
NCCL version 2.30.4+cuda13.0
n1:7:71 [0] NCCL INFO NET/Socket : Using [0]eth0:10.0.0.1<0>
n1:7:71 [0] NCCL INFO Using network Socket
n1:7:72 [0] NCCL INFO Using network IB
n1:7:72 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
n1:7:72 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/1/GDRDMA
n1:7:72 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM
n1:7:72 [0] NCCL INFO Channel 02 : 0[0] -> 1[1] via SHM/direct/direct
""".splitlines()


def test_what_nccl_says_of_its_networks_is_read() -> None:
    assert nccl_log.networks(LOG) == {"Socket": 1, "IB": 1}
    assert nccl_log.transports(LOG) == {"NET/Socket": 1, "NET/IB": 1, "P2P": 1, "SHM": 1}
    assert nccl_log.version(LOG) == (2, 30, 4) and nccl_log.version(["NCCL version x"]) is None


class Runs(check.Check):
    """Runs that left what they are told to."""

    def __init__(self, folder: Path, **left: Any) -> None:
        super().__init__(folder, on_cpu=False)
        self.left = {"loss": 2.0, "grad_norm": 1.0, "mfu": 0.5, "tokens_per_second": 100.0,
                     "memory_gib_per_rank": [10.0], "step": 6, **left}

    def train(self, ranks: int, words: list[str], *, on_cpu: bool | None = None, **environment: str) -> check.Trained:
        folder = self.folder / f"{len(list(self.folder.iterdir()))}"
        folder.mkdir()
        row = {**self.left, **({"loss": 2.0} if on_cpu else {})}
        (folder / "metrics.jsonl").write_text((json.dumps(row) + "\n") * 6)
        (folder / "plan.json").write_text('{"predicted": {"memory_gib_per_rank": [9.0]}}')
        return check.Trained(folder, LOG[-4:-2] if environment else LOG[-2:])


def test_each_check_fails_where_the_gpu_does_otherwise(tmp_path: Path) -> None:
    good = Runs(tmp_path)
    assert [bool(each(good)) for each in check.CHECKS.values()] == [True] * 5
    wrong: dict[str, dict[str, Any]] = {"losses": {"loss": 2.001}, "speed": {"mfu": 0.4},
                                        "memory": {"memory_gib_per_rank": [20.0]}}
    for name, left in wrong.items():
        with pytest.raises(RuntimeError):
            check.CHECKS[name](Runs(tmp_path, **left))
    silent = Runs(tmp_path)
    silent.train = lambda *given, **more: check.Trained(tmp_path, [])  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="with P2P and SHM off: {}"):
        check.networks(silent)


@pytest.mark.skipif(check.gpus() > 0, reason="this machine has a GPU: run tests/gpu/check.sh")
def test_without_a_gpu_nothing_counts_as_passed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert check.main(["speed", "memory", "--output", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 ok, 0 FAILED, 2 not run"


@pytest.mark.long
def test_all_of_it_runs_on_cpus(tmp_path: Path) -> None:
    done = subprocess.run([ROOT / "tests" / "gpu" / "check.sh", "--cpu", "--output", tmp_path], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 0 and done.stdout.endswith("4 ok, 0 FAILED, 1 not run\n"), done.stdout + done.stderr
