"""The reference of settings: complete, current, and true about defaults; on the page, in `--help` and as a command."""

from __future__ import annotations

import dataclasses
import re

import pytest
import yaml
from omegaconf import OmegaConf

from holmes_hpc import cli
from holmes_hpc.config.compose import compose
from holmes_hpc.config.fields import group, setting
from holmes_hpc.config.folders import package_folder
from holmes_hpc.config.help import help_text
from holmes_hpc.config.listing import listed_settings, shown
from holmes_hpc.config.reference import reference_text
from holmes_hpc.config.schema import Root
from tests.runs_for_tests import ROOT

FOUND = listed_settings(package_folder())
PAGE = ROOT / "docs" / "reference" / "settings.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == reference_text(package_folder()), (
        "make it anew: python -m holmes_hpc.settings --markdown > docs/reference/settings.md")


def _leaves(value: object, path: str) -> list[str]:
    if isinstance(value, dict) and value:
        return [leaf for key, item in value.items() for leaf in _leaves(item, f"{path}.{key}" if path else key)]
    return [path]


def test_every_key_that_composes_has_a_row_with_the_default_that_it_gets() -> None:
    config = OmegaConf.to_container(compose([], cluster_required=False), resolve=False)
    rows = {each.path: each for each in FOUND}
    composed = _leaves(config, "")
    assert len(composed) > 140
    assert set(composed) <= set(rows)
    for path in composed:
        value = config
        for part in path.split("."):
            value = value[part]  # type: ignore[index,call-overload]
        assert rows[path].default == value, path


def test_each_row_says_what_the_setting_means_and_takes() -> None:
    page = PAGE.read_text()
    for each in FOUND:
        row = next(line for line in page.splitlines() if line.startswith(f"| `{each.path}` |"))
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        assert len(cells) == 4 and all(cells), row
        assert each.setting.help, each.path


def test_help_keeps_its_promise() -> None:
    text = help_text("train", "trains.", package_folder())
    for each in FOUND:
        assert re.search(rf"^  {re.escape(each.path)}\n +.*; default ", text, re.MULTILINE), each.path


def test_a_default_that_a_file_sets_goes_before_that_of_the_schema() -> None:
    (rate,) = [each for each in FOUND if each.path == "optimizer.lr"]
    assert (rate.default, rate.others) == (0.002, {"optimizer=sgd": 0.05})


def test_a_default_as_it_is_shown_is_the_value_when_it_is_written() -> None:
    for each in FOUND:
        text = shown(each.default)
        if isinstance(each.default, str):
            assert text == each.default or each.default == "???"
        elif isinstance(each.default, float):
            assert float(text) == each.default, each.path
        else:
            assert yaml.safe_load(text) == each.default, each.path


@pytest.mark.parametrize(("words", "paths"), [
    (["clip"], ["optimizer.clip_grad_norm"]), (["SHA-256"], ["train.checkpoint_sha256"]),
    (["beta"], ["optimizer.beta1", "optimizer.beta2"])])
def test_settings_are_found_by_words(words: list[str], paths: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["settings", *words]) == 0
    assert re.findall(r"^  (\S+)$", capsys.readouterr().out, re.MULTILINE) == paths


def test_words_that_no_setting_has_are_answered_with_a_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["settings", "weight_decoy"]) == 2
    assert "weight_decay?" in capsys.readouterr().err


def test_a_new_key_would_be_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class Wider(Root):
        further: int = setting(7, "a key of tomorrow", minimum=1)
        more: Root = group(Root, "a group of tomorrow")

    monkeypatch.setattr("holmes_hpc.config.listing.Root", Wider)
    monkeypatch.setattr("holmes_hpc.config.reference.Root", Wider)
    assert "| `further` | `7` | a whole number from 1 | A key of tomorrow. |" in reference_text(package_folder())
    assert PAGE.read_text() != reference_text(package_folder())
