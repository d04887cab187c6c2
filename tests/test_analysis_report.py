"""`holmes report`: one page with everything in it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from holmes_hpc import cli
from holmes_hpc.config.compose import compose
from tests.run_folders import make_run, metric

DONE = {"status": "completed", "steps": 8, "final_loss": 2.0, "error": None, "emulated": True}


class Page(HTMLParser):
    """Collects the text, the pictures and what a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.sources: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attributes
                         if name in ("src", "href") and not (value or "").startswith("#")]
        if tag not in ("img", "meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def run(folder: Path, **further: object) -> Path:
    return make_run(folder, metrics=[metric(step) for step in range(1, 9)], timeline_steps=[8], result=DONE, **further)


def test_a_page_holds_figures_pictures_plan_and_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                              ) -> None:
    folder = run(tmp_path / "runs")
    assert cli.run(["report", str(folder)]) == 0
    assert f"wrote {folder / 'report.html'}" in capsys.readouterr().out
    page = Page((folder / "report.html").read_text())
    text = "".join(page.words)
    assert len(page.sources) == 3 and all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert not page.open[1:], "every element is closed"
    for word in ("completed", "holmes", "tokens/s", "gpt_tiny", "hidden_size: 128"):
        assert word in text


def test_the_plan_of_a_composed_run_is_drawn_and_secrets_are_not(tmp_path: Path) -> None:
    folder = run(tmp_path / "runs")
    from omegaconf import OmegaConf

    config = compose(["+cluster=mixed", "launch.setup=['export API_KEY=verysecret']"])
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config))
    assert cli.run(["report", str(folder), "--output", str(tmp_path / "new" / "page.html")]) == 0
    text = (tmp_path / "new" / "page.html").read_text()
    assert "verysecret" not in text and "API_KEY" in text
    assert re.search(r"pipeline|stage", "".join(Page(text).words))


def test_a_run_that_failed_before_its_first_step_says_why(tmp_path: Path) -> None:
    failed = {"status": "failed", "steps": 0, "error": "rank 3 <on> roce-0 died", "emulated": True}
    folder = make_run(tmp_path / "runs", metrics=[], result=failed)
    assert cli.run(["report", str(folder)]) == 0
    page = Page((folder / "report.html").read_text())
    assert "rank 3 <on> roce-0 died" in "".join(page.words) and page.sources == []


def test_what_is_no_run_and_no_place_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", str(tmp_path / "none")]) == 2
    assert "none: no run has this folder, job id, id or name" in capsys.readouterr().err
    folder = run(tmp_path / "runs")
    (tmp_path / "file").write_text("")
    assert cli.run(["report", str(folder), "--output", str(tmp_path / "file" / "page.html")]) == 2
    assert "--output" in capsys.readouterr().err
