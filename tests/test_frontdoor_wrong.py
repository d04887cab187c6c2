"""Wrong configurations: each gives its exit status, one message with the remedy, no traceback, and leaves nothing."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holmes_hpc import front, plan
from tests.runs_for_tests import ROOT, environment

MIXED = "+cluster=mixed"


@dataclass(frozen=True)
class Wrong:
    """Overrides, what their message contains, the verb, the exit status, and options before the overrides."""

    overrides: list[str]
    contains: tuple[str, ...]
    verb: str = "plan"
    status: int = 2
    options: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return " ".join([self.verb, *self.options, *self.overrides])


def planned(overrides: list[str], *contains: str) -> Wrong:
    return Wrong([MIXED, *overrides], contains)


def trained(overrides: list[str], *contains: str, status: int = 2) -> Wrong:
    return Wrong([MIXED, *overrides], contains, verb="train", status=status)


WRONG = [
    # names
    Wrong([], ("+cluster=NAME", "mixed", "holmes_paper")),
    Wrong(["+cluster=mixd"], ("no option mixd", "Did you mean mixed?", "holmes_paper")),
    Wrong(["cluster=mixed"], ("write +cluster=mixed",)),
    Wrong([MIXED, "model=gpt_3_6"], ("no option gpt_3_6", "Did you mean gpt_3_6b?", "llama_70b")),
    Wrong([MIXED, "modl=gpt_tiny"], ("modl: no such key", "Did you mean model?", "model=NAME")),
    Wrong([MIXED, "+model=gpt_tiny"], ("write model=gpt_tiny",)),
    Wrong([MIXED, "model.num_layer=4"], ("model.num_layer: no such key", "Did you mean model.num_layers?")),
    Wrong([MIXED, "+model.num_layer=4"], ("model.num_layer: no such key", "Did you mean model.num_layers?")),
    Wrong([MIXED, "++train.stepz=4"], ("train.stepz: no such key", "Did you mean train.steps?")),
    Wrong([MIXED, "+speed=4"], ("speed: no such key", "cluster, model, parallel")),
    Wrong([MIXED, "+hydra.foo=1"], ("hydra.foo: no such key",)),
    Wrong(["+cluster.nodse=3"], ("cluster.nodse: no such key", "Did you mean cluster.nodes?")),
    Wrong([MIXED, "cluster.partitions.ib.nodse=3"], ("Did you mean cluster.partitions.ib.nodes?",)),
    Wrong([MIXED, "cluster.partitions.opa.nodes=3"], ("no such label", "+cluster.partitions={opa:")),
    Wrong([MIXED, "+cluster.partitions.opa.nodes=3"], ("no such label", "+cluster.partitions={opa:")),
    Wrong([MIXED, "cluster.links=[{between:[ib,roce],bandwidth:3}]"],
          ("cluster.links.0.bandwidth: no such key", "Did you mean cluster.links.0.bandwidth_gbps?")),
    Wrong([MIXED, "model.num_layers.first=3"], ("model.num_layers is a single value",)),
    Wrong([MIXED, "~model"], ("model is needed",)),
    Wrong([MIXED, "hydra/launcher=nope"], ("hydra/launcher/nope", "basic")),
    # types and limits
    Wrong([MIXED, "model.num_layers=abc"], ("model.num_layers=abc: expected a whole number from 1",)),
    Wrong([MIXED, "model.num_layers=4.7"], ("expected a whole number from 1",)),
    Wrong([MIXED, "model.num_layers=true"], ("expected a whole number from 1",)),
    Wrong([MIXED, "model.num_layers=null"], ("expected a whole number from 1",)),
    Wrong([MIXED, "model.num_layers=0"], ("model.num_layers=0: expected a whole number from 1",)),
    Wrong([MIXED, "model.num_layers=???"], ("model.num_layers: needs a value",)),
    Wrong([MIXED, "model.num_layers=${nope}"], ("model.num_layers=${nope}: Interpolation key 'nope' not found",)),
    Wrong([MIXED, "optimizer.lr=nan"], ("optimizer.lr=nan: expected a number from 1e-12 up to",)),
    Wrong([MIXED, "optimizer.beta1=1"], ("optimizer.beta1=1.0: expected a number from 0 and below 1",)),
    Wrong([MIXED, "data.validation_fraction=0.9"], ("expected a number from 1e-09 up to 0.5",)),
    Wrong([MIXED, "train.precision=bf16"], ("one of float32, bfloat16, float16", "Did you mean bfloat16?")),
    Wrong([MIXED, "parallel.strategy=homes"], ("Did you mean holmes?",)),
    Wrong([MIXED, "launch.setup=module"], ("launch.setup=module: expected a list",)),
    Wrong([MIXED, "run=test"], ("run=test: expected a mapping with the keys name, folder",)),
    Wrong([MIXED, "cluster.partitions.ib.nodes=0"], ("cluster.partitions.ib.nodes=0: expected a whole number from 1",)),
    Wrong([MIXED, "cluster.partitions.ib.time_limit=noon"], ("12:00:00",)),
    Wrong([MIXED, "cluster.emulate.rates.ib=0"], ("cluster.emulate.rates.ib=0.0: ", "each to a number from 1e-06",)),
    Wrong([MIXED, "run.name=../elsewhere"], ("run.name=../elsewhere", "no slash")),
    Wrong([MIXED, "run.name='x%j'"], ("run.name=x%j", "only blanks and . , = + @ -")),
    # rules between settings
    Wrong([MIXED, "model.num_heads=3"], ("model.hidden_size=128 is not divisible by model.num_heads=3",)),
    Wrong([MIXED, "model.num_kv_heads=3"], ("model.num_heads=4 is not divisible by model.num_kv_heads=3",)),
    Wrong([MIXED, "parallel.micro_batch_size=5"], ("train.global_batch_size=32 is not divisible by",)),
    Wrong([MIXED, "parallel.pipeline=5"], ("more stages than model.num_layers=4", "at most 4 stages")),
    Wrong([MIXED, "parallel.layer_split=[2,3]"], ("sums to 5, and model.num_layers=4",)),
    Wrong([MIXED, "parallel.layer_split=[4,0]"], ("every count is a whole number from 1",)),
    Wrong([MIXED, "parallel.layer_split=[2,2]", "parallel.pipeline=4"], ("has 2 counts", "needs 4")),
    Wrong([MIXED, "parallel.layer_split=unifrm"], ("Did you mean uniform?",)),
    Wrong([MIXED, "parallel.warmup_extra=-1"], ("expected auto, or a whole number from 0",)),
    Wrong([MIXED, "cluster.emulate.rates.ib=1e308"], ("each to a number from 1e-06 up to 100000",)),
    Wrong([MIXED, "train.timeout_seconds=1e30"], ("expected a number from 0.1 up to 1e+06",)),
    Wrong([MIXED, "cluster.partitions.ib.nodes=1000000"], ("2,000,004 GPUs, and at most 65,536",)),
    Wrong([MIXED, "cluster.partitions.ib.nodes=1000000000"], ("expected a whole number from 1 up to 1,000,000",)),
    Wrong([MIXED, "+parallel.pipelines.a=1"], ("parallel.pipelines is a list", "parallel.pipelines=[...]")),
    Wrong([MIXED, "+launch.sbatch=3"], ("+launch.sbatch=3: expected a mapping",)),
    Wrong([MIXED, "+cluster.emulate=5"], ("is there already", "without the plus")),
    Wrong([MIXED, "cluster.partitions=[]"], ("cluster.partitions=[]: expected a mapping",)),
    Wrong([MIXED, "~model.num_layers"], ("model.num_layers is needed. Leave this out",)),
    Wrong([MIXED, "+train={steps: 3}"], ("as in train.steps=VALUE",)),
    Wrong(["+cluster=null"], ("name one, as in +cluster=NAME",)),
    Wrong([MIXED, "model.tied_embeddings=2"], ("model.tied_embeddings=2: expected true or false",)),
    Wrong(["+cluster=\N{CRAB}"], ("a character that needs quotes",)),
    Wrong([MIXED, "parallel=manual"], ("needs parallel.pipelines",)),
    Wrong([MIXED, "parallel=manual", "parallel.pipelines=[{microbatches: 4, stages: 3}]"],
          ("parallel.pipelines[0]: expected microbatches and a list of stages",)),
    Wrong([MIXED, "parallel=flashflex", "parallel.layer_split=uniform"], ("Set parallel.layer_split=adaptive",)),
    Wrong([MIXED, "parallel.pipelines=[{microbatches:4}]"], ("exclude each other", "parallel.strategy=manual")),
    Wrong([MIXED, "parallel.schedule=gpipe", "parallel.chunks=2"], ("parallel.schedule=interleaved",)),
    Wrong([MIXED, "optimizer.lr=1e-4"], ("optimizer.min_lr=0.0002 is above optimizer.lr=0.0001",)),
    *(Wrong([MIXED, "parallel=manual", "parallel.pipelines=[{stages: [{ranks: [0], layers: 4}]}]",
             f"parallel.{asked}"], (f"parallel.{asked.partition('=')[0]}", "exclude each other", "Leave "))
      for asked in ("tensor=2", "layer_split=[1,3]", "layer_split=uniform")),
    Wrong([MIXED, "cluster.nodes=2"], ("exclude each other", "+cluster=uniform")),
    Wrong([MIXED, "data=tokens"], ("needs data.path",)),
    *(Wrong([MIXED, f"data={kind}", "data.path=/no/such/words"], (f"there is no /no/such/words{end}: the folder",
                                                                  "data.check_before_start=false"))
      for kind, end in (("tokens", ""), ("text", ""), ("megatron", ".idx"))),
    Wrong([MIXED, "data=mixture", "data.sources=[{name: python_docs}, {name: tokens, path: none.bin}]"],
          ("data.sources.1.path=none.bin: there is no none.bin.",)),
    Wrong([MIXED, "data.path=/tmp/x"], ("exclude each other", "data=tokens")),
    # the command line
    Wrong([MIXED, "model.num_layers=[1,"], ("cannot read the override", "key=value")),
    Wrong([MIXED, "train"], ("cannot read the override 'train'",)),
    Wrong(["+cluster=mixed,ib"], ("needs -m",)),
    Wrong([MIXED], ("unrecognized arguments: --fast",), options=["--fast"]),
    Wrong([MIXED], ("hydra.searchpath=[site]",), options=["--config-dir", "site"]),
    Wrong([MIXED, "hydra.searchpath=[/no/such/folder]"], ("no folder '/no/such/folder'",)),
    Wrong([MIXED, "hydra.searchpath=site"], ("expected a list of folders",)),
    Wrong([MIXED, "output=megatron", "parallel.schedule=zero_bubble"], ("output=megatron", "1f1b")),
    Wrong([MIXED, "output_folder=out"], ("output_folder=out", "output=megatron")),
    Wrong([MIXED, "picture=plan.txt"], ("picture=plan.txt", ".png")),
    # a sweep: nothing starts when one of its jobs is wrong
    Wrong(["+cluster=mixed,mixd"], ("job 2 of 2", "Did you mean mixed?"), options=["-m"]),
    Wrong([MIXED, "parallel.pipeline=1,5"], ("job 2 of 2", "more stages than"), options=["-m"]),
    Wrong([MIXED, "optimizer.lr=interval(1,2)"], ("list the values",), options=["-m"]),
    Wrong([MIXED, "train.steps=abc"], ("expected a whole number",), options=["-m"]),
    Wrong([MIXED, "run.folder=taken/runs", "train.steps=1,2"], ("run.folder=taken/runs",), options=["-m"]),
    Wrong([MIXED, "model.num_layers=abc"], ("expected a whole number",), options=["--cfg", "job"]),
    # what only the planner can tell
    planned(["cluster.partitions.ib.gpu=a100-81g"], "a100-81g", "a100-80g"),
    planned(["cluster.partitions.roce.nic=roce201"], "roce201", "roce200"),
    planned(["cluster.links=[{between:[ib,opa],bandwidth_gbps:3}]"], "opa"),
    planned(["parallel=megatron", "parallel.pipeline=3"], "3"),
    planned(["parallel=megatron", "parallel.tensor=4"], "tensor"),
    planned(["model=gpt_145_6b", "parallel=holmes"], "memory"),
    # what only shows at the start
    trained(["launch.mode=slurm"], "launch.mode=slurm"),
    trained(["launch.mode=local", "launch.backend=nccl"], "launch.backend=nccl", "launch.backend=gloo"),
    trained(["parallel.cross_fabric_dtype=bfloat16"], "parallel.cross_fabric_dtype", "float32"),
    Wrong(["+cluster=mixed", "+cluster=ib"], ("+cluster=mixed +cluster=ib", "one cluster")),
    trained(["run.folder=taken/runs"], "run.folder"),
    trained(["data=tokens", "data.path=/no/such/tokens.bin", "train.steps=1"], "/no/such/tokens.bin"),
]


def call(wrong: Wrong, folder: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Run a command and return its status and output: in this process, but `train` in one of its own, as it forks."""
    if wrong.verb == "train":
        done = python(folder, "-m", "holmes_hpc.train", *wrong.options, *wrong.overrides)
        return done.returncode, done.stdout, done.stderr
    try:
        status = front.main(plan.COMMAND, [*wrong.options, *wrong.overrides])
    except SystemExit as end:  # argparse, for an unknown option
        status = end.code
    return status, *capfd.readouterr()


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_wrong_configurations_are_refused(
    wrong: Wrong, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("a file where a folder should be")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    status, out, err = call(wrong, tmp_path, capfd)
    assert status == wrong.status, err
    for text in wrong.contains:
        assert text in err
    assert "Traceback" not in err + out
    assert "HYDRA_FULL_ERROR" not in err
    assert not out or wrong.verb == "train"
    if wrong.status == 2:
        assert sorted(tmp_path.rglob("*")) == before


def python(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run([sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=60, check=False)


@pytest.mark.parametrize(("arguments", "contains"), [
    (["-m", "holmes_hpc.train", "+cluster=mixd"], "holmes train: +cluster=mixd"),
    (["-m", "holmes_hpc.plan", MIXED, "-m", "train.steps=1,x"], "holmes plan: job 2 of 2"),
    (["-m", "holmes_hpc.plan", MIXED, "--cfg", "job", "train.steps=x"], "holmes plan: train.steps=x"),
])
def test_exit_status_of_the_process(arguments: list[str], contains: str, tmp_path: Path) -> None:
    done = python(tmp_path, *arguments)
    assert contains in done.stderr
    assert done.returncode == 2
    assert not done.stdout
    assert not list(tmp_path.iterdir())


def test_full_error_shows_the_traceback_and_keeps_the_status(tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "holmes_hpc.plan", MIXED, "train.steps=x", HYDRA_FULL_ERROR="1")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.rstrip().splitlines()[-1].startswith("holmes plan: train.steps=x: expected")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_opened_to_nowhere(closed: str, tmp_path: Path) -> None:
    """Else the first files that are opened get their numbers, and what is printed; a traceback ended the command."""
    program = ("import os, sys; from holmes_hpc import cli; status = cli.run(['settings', 'train.seed']); "
               "number = os.open('first', os.O_CREAT | os.O_WRONLY); sys.stderr.write('said'); "
               "open('seen', 'w').write(f'{status} {number}')")
    shell = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} {closed}"
    subprocess.run(["bash", "-c", shell], cwd=tmp_path, env=environment(), check=True, capture_output=True)
    status, number = (tmp_path / "seen").read_text().split()
    assert status == "0" and int(number) > 2 and (tmp_path / "first").read_text() == ""
