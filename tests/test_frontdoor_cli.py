"""The console script: verbs, help, completion, doctor; and that none of it loads torch."""

from __future__ import annotations

import ast
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holmes_hpc import __version__, cli, doctor, plan
from tests.runs_for_tests import ROOT


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    usage = capsys.readouterr().out
    assert all(f"  {verb} " in usage for verb in cli.VERBS)
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"holmes {__version__}\n"


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([verb, "--help"]) == 0
    assert {"throughput": "python -m analysis.throughput"}.get(verb, f"holmes {verb}") in capsys.readouterr().out


def test_an_unknown_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["trian"]) == 2
    error = capsys.readouterr().err
    assert "Did you mean train?" in error
    assert all(verb in error for verb in cli.VERBS)
    assert error.startswith("holmes: no verb 'trian'. Did you mean train? Valid: train, plan, ")


@pytest.mark.parametrize(("line", "contains", "lacks"), [
    ("holmes ", {"train", "plan", "doctor", "throughput"}, {"model="}),
    ("holmes pl", {"plan"}, {"train"}),
    ("holmes train +cluster=", {"+cluster=mixed", "+cluster=holmes_paper"}, {"plan"}),
    ("holmes train model=llama_3", {"model=llama_30b"}, {"model=gpt_tiny"}),
    ("holmes plan +cluster=mixed parallel.lay", {"parallel.layer_split="}, set()),
    ("holmes throughput ru", set(), {"train", "model="}),
])
def test_completion(line: str, contains: set[str], lacks: set[str], monkeypatch: pytest.MonkeyPatch,
                    capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COMP_LINE", line)
    assert cli.run(["-sc", "query=bash"]) == 0
    words = set(capsys.readouterr().out.split())
    assert contains <= words
    assert not lacks & words


def test_completion_in_a_real_bash(tmp_path: Path) -> None:
    script = tmp_path / "holmes"
    script.write_text(f"#!{sys.executable}\nfrom holmes_hpc.cli import main\nmain()\n")
    script.chmod(0o755)
    program = """
        eval "$(holmes -sc install=bash)"
        COMP_LINE="holmes train +cluster=mi" COMP_POINT=24 COMP_CWORD=2
        COMP_WORDS=(holmes train +cluster=mi)
        hydra_bash_completion
        echo "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", program], env=environment, capture_output=True, text=True, timeout=60,
                          check=True)
    assert done.stdout.split() == ["+cluster=mixed", "+cluster=mixed_gpus"]


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "+cluster=mixed"]) == 0
    lines = capsys.readouterr().out.splitlines()
    subjects = [line.split()[1] for line in lines]
    assert {"python", "torch", "iproute2", "namespaces", "slurm", "processors", "memory", "cluster"} <= set(subjects)
    assert "8 ranks" in lines[subjects.index("cluster")]
    assert all(" -> " in line for line in lines if not line.startswith("ok"))


def test_doctor_fails_where_a_run_would(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.run(["doctor", "+cluster=mixed", "cluster.partitions.ib.gpu=a100-81g"]) == 1
    assert "FAIL  cluster" in capsys.readouterr().out

    def no_torch(name: str) -> str:
        raise doctor.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.importlib.metadata, "version", no_torch)
    assert cli.run(["doctor"]) == 1
    assert "pip install 'torch>=2.7'" in capsys.readouterr().out


def test_doctor_gives_a_silent_controller_two_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sinfo = tmp_path / "sinfo"
    sinfo.write_text("#!/bin/sh\nexec sleep 60\n")
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(doctor, "SLURM_SECONDS", 0.2)
    assert "did not answer within 0.2 s" in str(doctor._slurm())
    sinfo.write_text("#!/bin/sh\necho 'gpu*'\necho cpu\n")
    assert "partitions: cpu, gpu" in str(doctor._slurm())


LIGHT = {
    "help": "from holmes_hpc import cli; cli.run(['--help']); cli.run(['train', '--help'])",
    "compose": "from holmes_hpc.config.compose import compose; compose(['+cluster=mixed'])",
    "completion": "import os; os.environ['COMP_LINE'] = 'holmes train mod'\n"
                  "from holmes_hpc import cli; cli.run(['-sc', 'query=bash'])",
    "doctor": "from holmes_hpc import cli; cli.run(['doctor', '+cluster=mixed'])",
    "plan": "from holmes_hpc import cli; assert cli.run(['plan', '+cluster=mixed', 'output=json']) == 0",
    "picture": "import os, pathlib, tempfile; from holmes_hpc import cli\n"
               "path = pathlib.Path(tempfile.mkdtemp(), 'plan.png')\n"
               "assert cli.run(['plan', '+cluster=mixed', 'output=json', f'picture={path}']) == 0\n"
               "assert path.stat().st_size",
    "megatron": "from holmes_hpc import cli; assert cli.run(['plan', '+cluster=mixed', 'output=megatron']) == 0",
    "compare": "from holmes_hpc import cli; assert cli.run(['compare', 'none.json', 'none.json']) == 2",
    "refused": "from holmes_hpc import cli; assert cli.run(['train', '+cluster=mixd']) == 2",
}


@pytest.mark.parametrize("command", LIGHT)
def test_commands_that_need_no_torch_load_none(command: str, tmp_path: Path) -> None:
    program = LIGHT[command] + "\nimport sys; sys.exit(f'loaded {m}' if (m := 'torch') in sys.modules else 0)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())


def test_plan_prints_json_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                capsys: pytest.CaptureFixture[str]) -> None:
    from holmes_hpc.values import Plan

    monkeypatch.chdir(tmp_path)
    assert plan.main(["+cluster=mixed", "output=json"]) == 0
    assert Plan.from_json(capsys.readouterr().out).world_size == 8
    assert plan.main(["+cluster=mixed"]) == 0
    out, err = capsys.readouterr()
    assert "ib" in out and "roce" in out
    assert all(line.startswith("planning: ") for line in err.splitlines()), "on a busy machine it says how far it is"
    assert not list(tmp_path.iterdir())


def test_a_command_leaves_the_logger_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    def state() -> list[object]:
        return [(logger.handlers[:], logger.level, logger.propagate)
                for logger in (logging.getLogger("holmes_hpc"), logging.getLogger())]

    before = state()
    assert cli.run(["plan", "+cluster=nowhere"]) == 2
    assert state() == before
    assert cli.run(["plan", "+cluster=mixed", "hydra.verbose=true"]) == 0
    assert state() == before


@pytest.mark.parametrize("arguments", [
    ["site", "ours", "--to", "x"], ["train", "+cluster=mixed", "--mult"], ["plan", "+cluster=mixed", "--cf", "job"],
    ["jobs", "--fol", "runs"], ["throughput", "--js", "runs"]])
def test_a_flag_is_named_in_full(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """What a later version calls by the beginning of a flag would otherwise be taken for another one."""
    with pytest.raises(SystemExit) as end:
        raise SystemExit(cli.run(arguments))
    assert end.value.code == 2
    flag = next(word for word in arguments if word.startswith("--"))
    assert f"unrecognized arguments: {flag}" in capsys.readouterr().err


def test_no_program_of_ours_takes_the_beginning_of_a_flag() -> None:
    calls = [(path.name, node.lineno, {each.arg for each in node.keywords})
             for folder in ("holmes_hpc", "analysis", "benchmarks", "tools", "tests")
             for path in (ROOT / folder).rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))
             if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("ArgumentParser", "add_parser")]
    assert len(calls) > 30
    assert [call for call in calls if "allow_abbrev" not in call[2]] == []
