"""Programs whose answers are read may print without an end, or never: who asked them is told so, and they are ended."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from holmes_hpc.bounded import TooMuchOutputError, run_bounded
from holmes_hpc.submit.commands import SlowSlurmError, SlurmCommandError, TransientSlurmError, run_command
from tests.runs_for_tests import ROOT

ENDLESS = "while os.write({pipe}, b'x' * 65536): pass"


def program(folder: Path, name: str, body: str) -> str:
    """Leave a program of this body in a folder, which writes its pid into a file beside it."""
    path = folder / name
    pid = f"open({str(path)!r} + '.pid', 'w').write(str(os.getpid()))"
    path.write_text(f"#!{sys.executable}\nimport os, sys, time\n{pid}\n{body}\n")
    path.chmod(0o755)
    return str(path)


def is_gone(path: str) -> bool:
    return not Path("/proc", Path(f"{path}.pid").read_text()).exists()


def test_what_a_program_prints_and_how_it_ends_is_told(tmp_path: Path) -> None:
    path = program(tmp_path, "tool", "print('\\u00e4'); os.write(1, b'\\xff'); sys.stderr.write('why'); sys.exit(3)")
    answer = run_bounded([path], 60)
    assert (answer.status, answer.text, answer.said_text) == (3, "ä\n\ufffd", "why")


def test_an_output_without_an_end_is_an_error_and_costs_no_memory(tmp_path: Path) -> None:
    path = program(tmp_path, "squeue", ENDLESS.format(pipe=1))
    tracemalloc.start()
    try:
        with pytest.raises(TooMuchOutputError, match=r"squeue --me: it printed more than 3,000,000 bytes, and no more"):
            run_bounded([path, "--me"], 600, most_bytes=3_000_000)
        assert tracemalloc.get_traced_memory()[1] < 12_000_000
    finally:
        tracemalloc.stop()
    assert is_gone(path)


def test_of_an_error_output_without_an_end_the_end_is_kept(tmp_path: Path) -> None:
    path = program(tmp_path, "sinfo", "for _ in range(1000): os.write(2, b'x' * 65536)\nos.write(2, b'the end')")
    answer = run_bounded([path], 600)
    assert answer.said.endswith(b"xthe end") and len(answer.said) == 2**20


def test_a_program_that_takes_too_long_is_ended_and_what_it_said_is_told(tmp_path: Path) -> None:
    path = program(tmp_path, "tool", "os.write(2, b'busy')\nos.close(1); os.close(2)\ntime.sleep(600)")
    words: list[str] = []
    began = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired) as error:
        run_bounded([path], 3, word_seconds=1, word=lambda: words.append("still waiting"))
    assert time.monotonic() - began >= 3 and error.value.stderr == b"busy" and words == ["still waiting"]
    assert is_gone(path)


@pytest.mark.parametrize("seconds", [0.2, 600.0])
def test_what_is_interrupted_leaves_a_program_its_time_of_grace_and_no_more(tmp_path: Path, seconds: float) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    path = program(tmp_path, "sbatch", f"time.sleep({seconds})\nopen(sys.argv[0] + '.done', 'w')")
    with pytest.raises(KeyboardInterrupt):
        run_bounded([path], 600, word_seconds=0.3 if seconds > 1 else 0.05, word=interrupt, grace_seconds=3)
    assert Path(f"{path}.done").exists() == (seconds < 1) and is_gone(path)


def test_commands_of_slurm_that_print_without_an_end_are_one_message(tmp_path: Path,
                                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holmes_hpc.bounded.MOST_BYTES", 10_000)
    path = program(tmp_path, "squeue", ENDLESS.format(pipe=1))
    with pytest.raises(SlurmCommandError, match="it printed more than 10,000 bytes") as error:
        run_command([path, "--me"])
    assert not isinstance(error.value, TransientSlurmError), "asking again is of no use"


def test_commands_of_slurm_that_do_not_answer_say_so(tmp_path: Path) -> None:
    path = program(tmp_path, "squeue", "os.write(2, b'retrying')\ntime.sleep(600)")
    with pytest.raises(SlowSlurmError, match="no answer within 3 s") as error:
        run_command([path, "--me"], timeout_seconds=3)
    assert error.value.said == "retrying" and is_gone(path)


def test_no_other_module_reads_all_that_a_program_prints() -> None:
    """`capture_output` and `communicate` keep whatever comes."""
    allowed = {"emulation/namespaces.py"}  # `ip` and `tc`, which are told and print no lists
    found = set()
    for path in (ROOT / "holmes_hpc").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            whole = isinstance(node, ast.keyword) and node.arg == "capture_output"
            asked = isinstance(node, ast.Attribute) and node.attr in ("communicate", "check_output", "getoutput")
            if whole or asked:
                found.add(str(path.relative_to(ROOT / "holmes_hpc")))
    assert found == allowed
