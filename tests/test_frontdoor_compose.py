"""Composing: every file, every pair of cluster and model, users' own files, sweeps, and what a command leaves."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from holmes_hpc import front
from holmes_hpc.config import folders
from holmes_hpc.config.compose import compose, compose_job, compose_sweep
from holmes_hpc.config.help import GROUPS, help_text
from holmes_hpc.errors import ConfigurationError, RunFailedError

CONF = folders.package_folder()
CLUSTERS = folders.options("cluster", CONF)
MODELS = folders.options("model", CONF)
NEEDED = {  # what a file leaves to be given with it
    "parallel=manual": ["parallel.pipelines=[{microbatches: 32, stages: [{ranks: [0,1,2,3,4,5,6,7], layers: 4}]}]"],
    "data=tokens": ["data.path=tokens.bin"],
    "data=megatron": ["data.path=corpus_text_document"],
    "data=text": ["data.path=books", "data.tokenizer=tokenizer.json"],
    "data=chat": ["data.path=talks.jsonl", "data.tokenizer=model"],
    "data=mixture": ["data.sources=[{name: tokens, path: a.tokens, weight: 7}, {name: python_docs, weight: 3}]"],
}
OTHERS = [f"{group}={name}" for group in GROUPS if group not in ("cluster", "model")
          for name in folders.options(group, CONF)]


def test_the_catalogue_is_there() -> None:
    assert {"mixed", "ib", "roce", "ethernet", "laptop", "holmes_paper", "mixed_gpus", "uniform"} <= set(CLUSTERS)
    assert {"gpt_tiny", "gpt_3_6b", "gpt_7_5b", "gpt_39_1b", "llama_7b", "llama_13b", "llama_30b"} <= set(MODELS)
    assert {"parallel=auto", "parallel=holmes", "parallel=megatron", "data=python_docs"} <= set(OTHERS)


@pytest.mark.parametrize(("clusters", "models"), [
    (CLUSTERS, ["gpt_tiny"]), (["mixed"], MODELS[::4]), pytest.param(["mixed"], MODELS, marks=pytest.mark.long),
    pytest.param(CLUSTERS, MODELS[::12], marks=pytest.mark.long)], ids=["clusters", "some models", "models", "pairs"])
def test_every_cluster_and_model_composes(clusters: list[str], models: list[str]) -> None:
    """In one sweep: composing is what a command does, and a pair costs about a tenth of a second."""
    configs = compose_sweep([f"+cluster={','.join(clusters)}", f"model={','.join(models)}"])
    assert [(config.cluster.name, config.model.name) for config in configs] == [
        (cluster, model) for cluster in clusters for model in models
    ]


@pytest.mark.parametrize("option", OTHERS)
def test_every_other_file_composes(option: str) -> None:
    config = compose(["+cluster=mixed", option, *NEEDED.get(option, [])])
    group, name = option.split("=")
    assert config[group].get("name", config[group].get("strategy", name)) == name


def test_figures_of_the_holmes_paper() -> None:
    config = compose(["+cluster=holmes_paper", "model=gpt_3_6b"])
    assert (config.model.num_layers, config.model.hidden_size, config.model.num_heads) == (30, 3072, 32)
    assert {label: (part.nodes, part.gpus_per_node, part.nics_per_node)
            for label, part in config.cluster.partitions.items()} == {"ib": (2, 8, 4), "roce": (2, 8, 2)}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's own cluster folder, empty."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "holmes_hpc" / "cluster"
    folder.mkdir(parents=True)
    return folder


def test_a_users_own_cluster(site: Path) -> None:
    (site / "ours.yaml").write_text("defaults: [mixed]\nname: ours\npartitions: {ib: {nodes: 3}}\n")
    config = compose(["+cluster=ours"])
    assert config.cluster.partitions.ib.nodes == 3
    assert config.cluster.partitions.roce.nic == "roce200"


def test_a_users_own_cluster_is_listed_and_nearly_matched(site: Path) -> None:
    (site / "centre.yaml").write_text("name: centre\n")
    with pytest.raises(ConfigurationError, match=f"in {site}: centre"):
        compose([])
    with pytest.raises(ConfigurationError, match=r"Did you mean centre\?"):
        compose(["+cluster=center"])
    assert "centre" in help_text("train", "", CONF)


def test_a_single_job_is_left_to_hydra_only_where_it_sets_something_of_hydras(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "centre.yaml").write_text(
        "# @package _global_\ncluster: {name: centre, partitions: {a: {nodes: 1}}}\n"
        "hydra: {job: {env_set: {WHERE: centre}}}\n")
    search = f"hydra.searchpath=[{tmp_path}]"
    for overrides, left in (([], False), ([search], False), (["hydra.verbose=true"], True),
                            (["hydra.run.dir=elsewhere"], True), (["hydra/job_logging=default"], True)):
        config, asks_hydra = compose_job(["+cluster=mixed", *overrides])
        assert asks_hydra == left, overrides
        assert config == compose(["+cluster=mixed", *overrides])
    assert compose_job(["+cluster=centre", search])[1]
    seen: list[str | None] = []
    command = front.Command("plan", "", lambda config: (seen.append(os.environ.get("WHERE")) or 0, None))
    monkeypatch.chdir(tmp_path)
    assert front.main(command, ["+cluster=centre", search]) == 0
    assert seen == ["centre"]


def test_a_search_path_is_used_and_listed(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    (tmp_path / "cluster" / "centre.yaml").write_text("name: centre\npartitions: {a: {nodes: 1}}\n")
    assert compose(["+cluster=centre", f"hydra.searchpath=[{tmp_path}]"]).cluster.name == "centre"
    with pytest.raises(ConfigurationError, match=r"Did you mean centre\?"):
        compose(["+cluster=center", f"hydra.searchpath=[file://{tmp_path}]"])


def test_times_stay_text(site: Path) -> None:
    """YAML alone would read 12:00:00 as 43200, and Slurm would take that as minutes."""
    (site / "ours.yaml").write_text(
        "name: ours\npartitions:\n  a: {time_limit: 12:00:00}\n  b: {time_limit: 2-00:00:00}\n"
        "  c: {time_limit: 30:00}\n  d: {time_limit: 90, nodes: 16}\n"
    )
    config = compose(["+cluster=ours", "cluster.partitions.b.time_limit=1:30:00"])
    assert [part.time_limit for part in config.cluster.partitions.values()] == ["12:00:00", "1:30:00", "30:00", "90"]
    assert config.cluster.partitions.d.nodes == 16


@pytest.mark.parametrize(("text", "contains"), [
    ("name: ours\npartitions:\n  a: {nodes: 1\n  b: 3\n", ["ours.yaml, line 4, column 4"]),
    ("name: ours\nname: twice\n", ["ours.yaml, line 2", "duplicate key name"]),
    ("name: ours\n\tnodes: 1\n", ["ours.yaml, line 2"]),
    ("name: ours\npartitions: {a: {nodse: 1}}\n", ["cluster/ours.yaml", "Did you mean cluster.partitions.a.nodes?"]),
    ("name: ours\npartitions: {a: {nodes: three}}\n", ["cluster/ours.yaml", "cluster.partitions.a.nodes", "from 1"]),
    ("name: ours\npartitions: 3\n", ["cluster/ours.yaml", "cluster.partitions"]),
    ("name: ours\npartitions: {a/b: {nodes: 1}}\n", ["cluster.partitions.a/b", "letters"]),
    ("partitions: {a: {nodes: 1}}\n", ["cluster.name: needs a value"]),
    ("defaults: [mixd]\n", ["cluster/ours.yaml", "cluster/mixd"]),
    ("- a\n", ["cluster/ours.yaml", "list"]),
    ("hello\n", ["cluster/ours.yaml", "a single value", "KEY: VALUE"]),
    ("", ["cluster/ours.yaml", "empty", "partitions: {LABEL"]),
    ("name: ours\nnodes: ${oops\n", ["cluster/ours.yaml", "${...}"]),
    ("name: ours\npartitions: {a: {nodes: 0}}\n", ["cluster/ours.yaml", "partitions.a.nodes=0"]),
    ("# @package _global_\nspeed: 3\n", ["cluster/ours.yaml", "speed: no such key"]),
])
def test_a_wrong_file_is_named(site: Path, text: str, contains: list[str]) -> None:
    (site / "ours.yaml").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        compose(["+cluster=ours"])
    for part in contains:
        assert part in str(caught.value)


def test_a_file_that_is_not_text(site: Path) -> None:
    (site / "ours.yaml").write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        compose(["+cluster=ours"])


def test_every_key_of_the_schema_has_help() -> None:
    lines = help_text("train", "", CONF).splitlines()
    keys = [index for index, line in enumerate(lines) if line.startswith("  ") and "." in line and "=" not in line]
    assert "  parallel.layer_split" in lines
    assert "  cluster.partitions.LABEL.gid_index" in lines
    assert all(len(lines[index + 1].strip()) > 8 for index in keys if not lines[index].startswith("   "))


def call(argv: list[str], action=lambda config: (0, 10.0)) -> tuple[int, list]:
    """Run a command whose action records its configuration; return the status and what was recorded."""
    seen = []

    def act(config):
        seen.append(config)
        return action(config)

    return front.main(front.Command("train", "", act), argv), seen


def test_an_action_gets_the_plain_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    status, seen = call(["+cluster=mixed", "train.steps=7", "cluster.partitions.ib.time_limit=12:00:00"])
    assert status == 0
    assert seen[0].train.steps == 7
    assert "hydra" not in seen[0]
    assert OmegaConf.to_container(seen[0]) == OmegaConf.to_container(
        compose(["+cluster=mixed", "train.steps=7", "cluster.partitions.ib.time_limit=12:00:00"])
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("status", [0, 1, 3, 130])
def test_the_action_decides_the_status(status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(["+cluster=mixed"], lambda config: (status, None))[0] == status


def test_errors_and_interrupts_of_an_action(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def fail(config):
        raise RunFailedError("rank 3 on roce-1 died")

    def interrupt(config):
        raise KeyboardInterrupt

    assert call(["+cluster=mixed"], fail)[0] == 1
    assert capsys.readouterr().err == "holmes train: rank 3 on roce-1 died\n"
    assert call(["+cluster=mixed"], interrupt)[0] == 130


def test_a_sweep_runs_every_job_and_fails_when_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = ["-m", "+cluster=mixed,ib", "parallel=holmes,megatron"]
    status, seen = call(argv)
    assert status == 0
    assert [(config.cluster.name, config.parallel.strategy) for config in seen] == [
        ("mixed", "holmes"), ("mixed", "megatron"), ("ib", "holmes"), ("ib", "megatron")
    ]
    table = capsys.readouterr().err
    assert [line.split() for line in table.splitlines()[-2:]] == [
        ["done", "10", "+cluster=ib", "parallel=holmes"], ["done", "10", "+cluster=ib", "parallel=megatron"]]


def test_the_table_of_a_sweep_has_speeds_and_what_differs() -> None:
    jobs = front._Jobs([("+cluster=laptop train.steps=2 optimizer.lr=0.1", (0, 1234.5)),
                        ("+cluster=laptop train.steps=2 optimizer.lr=0.2", (1, None)),
                        ("+cluster=laptop train.steps=2 optimizer.lr=0.3", (0, float("nan")))])
    assert [line.split() for line in front._table(jobs).splitlines()] == [
        [], ["state", "tokens/s", "overrides"], ["done", "1,234", "optimizer.lr=0.1"],
        ["failed", "-", "optimizer.lr=0.2"], ["done", "-", "optimizer.lr=0.3"],
        ["all:", "+cluster=laptop", "train.steps=2"]]


@pytest.mark.parametrize(("sweeper", "fails"), [("basic", False), ("optuna", True)])
def test_a_failed_job_is_nan_to_hydras_own_sweeper_and_a_failure_to_others(
    sweeper: str, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hydra's sweeper reads what every job returned, and would raise; others read nan as a value."""
    monkeypatch.chdir(tmp_path)
    choices = type("Choices", (), {"get": lambda self, name: sweeper})()
    get = front.HydraConfig.get

    def of_sweeper() -> object:
        found = get()
        return SimpleNamespace(mode=found.mode, overrides=found.overrides, runtime=SimpleNamespace(choices=choices))

    monkeypatch.setattr(front.HydraConfig, "get", of_sweeper)
    status, seen = call(["-m", "+cluster=ib,roce"], lambda config: (1, None))
    assert (status, len(seen)) == (1, 2)
    assert ("max_failure_rate=1 lets the sweep go on" in capsys.readouterr().err) == fails


def test_a_sweep_leaves_one_file_and_has_the_status_of_its_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = ["-m", "+cluster=mixed,ib", "parallel=holmes,megatron"]
    assert call(argv)[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert [path.name for path in (tmp_path / "runs").rglob("*.yaml")] == ["multirun.yaml"]

    status, seen = call(argv, lambda config: (int(config.cluster.name == "mixed"), None))
    assert (status, len(seen)) == (1, 4)
    status, seen = call(argv, lambda config: (130, None))
    assert (status, len(seen)) == (130, 1)


def test_a_sweep_over_ranges_and_globs() -> None:
    assert [c.train.steps for c in compose_sweep(["+cluster=ib", "train.steps=range(2,9,3)"])] == [2, 5, 8]
    names = [c.model.name for c in compose_sweep(["+cluster=ib", "model=glob(llama_*)"])]
    assert names == [name for name in MODELS if name.startswith("llama_")]


def test_cfg_prints_the_composed_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    status, seen = call(["+cluster=mixed", "--cfg", "job", "train.steps=7"])
    assert (status, seen) == (0, [])
    assert OmegaConf.create(capsys.readouterr().out).train.steps == 7
    assert not list(tmp_path.iterdir())
