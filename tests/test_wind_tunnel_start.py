"""What a wind tunnel refuses, leaves aside and says: its ranks hold no weights, and its links are scaled."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.engine.parts import Parts
from holmes_hpc.errors import CheckpointError, ConfigurationError
from holmes_hpc.launch import train as launch_train
from holmes_hpc.launch.follow.advice import next_steps
from holmes_hpc.launch.here.tunnel import check_tunnel, idle_settings, tunnel_words
from holmes_hpc.runs import RunFolder
from holmes_hpc.values.timed import TimedPrices

TIMED = ["+cluster=mixed", "launch.mode=emulated", "cluster.emulate.compute=timed", "cluster.emulate.scale=1000"]


@pytest.mark.parametrize(("words", "why"), [
    (["train.resume=runs/mixed/old"], "train.resume=runs/mixed/old: .* hold no weights"),
    (["launch.probe=true"], "launch.probe=true: the links .*scale=1000"),
    (["launch.probe_only=true"], "`holmes probe`: the links .*scale=1000"),
])
def test_what_needs_weights_or_links_at_their_rates_is_refused_at_the_start(words: list[str], why: str, tmp_path: Path
                                                                            ) -> None:
    check_tunnel(compose(TIMED))
    with pytest.raises(ConfigurationError, match=why):
        launch_train.run(compose([*TIMED, *words, f"run.folder={tmp_path}"]))
    assert not list(tmp_path.iterdir())


def test_settings_that_play_no_part_are_named_and_others_are_not() -> None:
    for optimizer in ("adamw", "sgd"):
        assert not list(idle_settings(compose([*TIMED, "train.steps=4", "train.precision=bfloat16",
                                               f"optimizer={optimizer}", "optimizer.sharded=false"])))
    asked = ["train.checkpoint_every=2", "train.validate_every=2", "train.compile=true", "optimizer.lr=0.001"]
    said, = idle_settings(compose([*TIMED, *asked]))
    assert all(each.partition("=")[0] in said for each in asked) and said.endswith("play no part")


def test_a_published_model_gives_its_sizes_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({
        "model_type": "gpt2", "vocab_size": 512, "n_positions": 64, "n_embd": 32, "n_layer": 4, "n_head": 2}))
    config = compose([*TIMED, f"model.from_pretrained={tmp_path}"])
    assert config.model.num_layers == 4
    said = next(iter(idle_settings(config)))
    assert said.startswith("model.from_pretrained: a wind tunnel") and "no weights" in said
    launch_train.check_before(config, has_weights=False)
    with pytest.raises(ConfigurationError, match="no weights|safetensors"):
        launch_train.check_before(config)
    nothing: Any = None
    parts = Parts(nothing, nothing, nothing, nothing, nothing, nothing, {})
    job: Any = SimpleNamespace(pretrained=str(tmp_path), timed=object())
    parts.check_started(job, 0)
    job.timed = None
    with pytest.raises(CheckpointError, match="have gone"):
        parts.check_started(job, 0)


def test_a_wind_tunnel_says_at_which_pace_and_why() -> None:
    prices = TimedPrices(1000.0, 1.0, {}, {}, {}, rates={("ib/0", "ib"): 200.0})
    assert "1 times slower" not in tunnel_words(prices)
    slower = TimedPrices(1000.0, 7.77, {}, {}, {})
    assert "7.77 times slower (dilation), so that this machine keeps up" in tunnel_words(slower)
    asked = tunnel_words(slower, asked=True)
    assert "7.77 times slower (cluster.emulate.dilation=7.77):" in asked and "keeps up" not in asked


def test_no_checkpoint_is_advised_to_a_run_without_weights(tmp_path: Path) -> None:
    words = next_steps(RunFolder.create(tmp_path, "tunnel"), 0, has_weights=False)
    assert "holmes report" in words and "no weights" in words and "checkpoint_every" not in words
