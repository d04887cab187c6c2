"""The configuration that a run keeps, read by a version with other settings, or damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from holmes_hpc.config.compose import compose
from holmes_hpc.config.kept import read_kept
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.runs.sweeps import Sweep

CLUSTER = ["+cluster=mixed"]


def kept(folder: Path, config: Any) -> Path:
    path = folder / "config.yaml"
    path.write_text(config if isinstance(config, str) else OmegaConf.to_yaml(config))
    return path


def leaves(config: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all mappings' keys."""
    items = config.items() if isinstance(config, dict) else enumerate(config) if isinstance(config, list) else ()
    found = [(*path, key) for key, _ in items] if isinstance(config, dict) else []
    return found + [leaf for key, value in items for leaf in leaves(value, (*path, key))]


def test_what_this_version_wrote_is_read_as_it_was(tmp_path: Path) -> None:
    config = compose([*CLUSTER, "run.name=3.10", "optimizer.lr=1e-3", "optimizer.min_lr=1e-5",
                      "+launch.sbatch={comment: no, mem: 0}"])
    told: list[str] = []
    assert read_kept(kept(tmp_path, config), told.append) == OmegaConf.create(OmegaConf.to_yaml(config))
    assert not told


@pytest.mark.parametrize("name", ["schedule", "cooldown_steps", "decayed"])
def test_a_setting_that_is_newer_than_the_run_has_its_default_and_is_said(tmp_path: Path, name: str) -> None:
    config = compose([*CLUSTER, "optimizer.lr=0.5"])
    default = config.optimizer[name]
    older = OmegaConf.to_container(config)
    assert isinstance(older, dict)
    del older["optimizer"][name]
    told: list[str] = []
    read = read_kept(kept(tmp_path, OmegaConf.create(older)), told.append)
    assert read.optimizer[name] == default and read.optimizer.lr == 0.5
    assert len(told) == 1 and f"lacks optimizer.{name}; each has its default" in told[0]


def test_any_setting_may_be_newer_than_the_run(tmp_path: Path) -> None:
    """Nobody meets a setting that is not there: in groups, in labels of the cluster, in sources of a mixture."""
    config = compose([*CLUSTER, "data=mixture", "data.sources=[{name: python_docs}, {name: text, path: there}]"])
    older = OmegaConf.create({"cluster": {"name": "mixed", "partitions": {"ib": {}, "roce": {}}},
                              "data": {"sources": [{}, {}]}})
    told: list[str] = []
    filled = set(leaves(OmegaConf.to_container(read_kept(kept(tmp_path, older), told.append))))
    known = {leaf for leaf in leaves(OmegaConf.to_container(config)) if "rates" not in leaf[:-1]}
    assert known <= filled and ("data", "sources", 1, "weight") in known and len(known) > 150
    assert "cluster.partitions.ib.nic" in told[0] and "data.sources.1.weight" in told[0]


def test_settings_of_another_version_that_this_one_does_not_know_stay(tmp_path: Path) -> None:
    config = compose(CLUSTER)
    text = OmegaConf.to_yaml(config).replace("optimizer:\n", "optimizer:\n  gone: 3\n")
    assert isinstance(config, DictConfig) and read_kept(kept(tmp_path, text)).optimizer.gone == 3


@pytest.mark.parametrize("text", ["", "- 1\n", "a: [1\n", "a: &a [x,x]\nb: {*a : 1}\n", "\tx: 1\n", "just words",
                                  "optimizer: 3\nmodel: ${nowhere\n", "[" * 100_000, "a: 1\n\x00"])
def test_a_damaged_one_is_one_message_that_names_the_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError, match="start it anew") as caught:
        read_kept(kept(tmp_path, text))
    assert str(tmp_path / "config.yaml") in str(caught.value)


def test_one_that_is_missing_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="start it anew"):
        read_kept(tmp_path / "config.yaml")


def test_a_sweep_of_an_older_version_goes_on_and_says_it_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sweep = Sweep.begin(tmp_path / "sweep", [compose(CLUSTER)] * 2, ["a", "b"])
    for path in sweep.place.glob("configs/*/config.yaml"):
        path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "decayed" not in line))
    with caplog.at_level("INFO", "holmes_hpc"):
        assert [config.optimizer.decayed for config in sweep.configs()] == ["matrices"] * 2
    assert caplog.text.count("lacks optimizer.decayed") == 1
