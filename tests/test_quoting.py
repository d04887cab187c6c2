"""Hostile values in settings of type text: refused at composing, or text wherever they come to."""

from __future__ import annotations

import dataclasses
import io
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from analysis import report
from analysis.reading import read_runs
from holmes_hpc.cluster import read_cluster
from holmes_hpc.config.check import check
from holmes_hpc.config.compose import compose
from holmes_hpc.config.describe import Setting, settings
from holmes_hpc.config.schema import Root
from holmes_hpc.errors import ConfigurationError, HolmesError
from holmes_hpc.launch.train import make_folder
from holmes_hpc.planner import plan, render
from holmes_hpc.program import report as report_error
from holmes_hpc.quoting import control_character, for_html, for_sbatch, for_terminal
from holmes_hpc.runs import RunFolder, write_result
from holmes_hpc.submit.board import COLUMNS, table, text
from holmes_hpc.submit.job import job_request
from holmes_hpc.submit.options import site_options
from holmes_hpc.submit.script import render_script

CONTROLS = ("a\nb", "a\n#SBATCH --wrap=touch PWNED", "a\rb", "a\x1b[2Jb", "a\x00b", "a\x7fb", "a\x9b31mb", "a\u2028b",
            "a\u202eb", "a\u200bb", "a\u200fb", "a\u061cb", "a\ufeffb", "a\u00adb", "a\u2060b", "a\U000e0041b")
PRINTABLE = ("'; touch PWNED; '", "$(touch PWNED)", "`touch PWNED`", '" --wrap="touch PWNED', "a && touch PWNED # x",
             "\\", "<script>alert(1)</script>", "\"><img src=x onerror=alert(1)>", "[link=http://evil]x[/link]",
             "[red]x", "--wrap=x", "a b", "*", "%j", "~")
PARTITION = "cluster.partitions.ib."


@pytest.fixture(scope="module")
def base() -> DictConfig:
    return compose(["+cluster=mixed", "launch.setup=[a]", "launch.srun_args=[b]", "+launch.sbatch.comment=c"])


def texts(schema: Any = Root, path: str = "") -> Iterator[Setting]:
    """Yield every setting that may hold text."""
    for setting in settings(schema, path).values():
        if dataclasses.is_dataclass(setting.kind):
            yield from texts(setting.kind, f"{setting.path}.")
        elif setting.path == "cluster.partitions":
            yield from texts(type_of(setting.kind), PARTITION)
        elif "float" not in str(setting.kind) and "str" in str(setting.kind) or "Any" in str(setting.kind):
            yield setting


def type_of(kind: Any) -> Any:
    return kind.__args__[-1]


def plant(config: DictConfig, setting: Setting, value: str) -> None:
    """Put a value into a setting of an open configuration: as text, or as an item of its list or mapping."""
    kind = str(setting.kind)
    inside: Any = [value] if "list" in kind else {"comment": value} if "dict" in kind else value
    holder, _, name = setting.path.rpartition(".")
    (OmegaConf.select(config, holder) if holder else config)._set_item_impl(name, inside)


def opened(base: DictConfig) -> DictConfig:
    config = base.copy()
    OmegaConf.set_struct(config, False)
    return config


SETTINGS = {setting.path: setting for setting in texts()}


def test_the_schema_has_the_settings_that_this_is_about() -> None:
    assert len(SETTINGS) > 50
    assert {"run.name", "launch.setup", "launch.sbatch", PARTITION + "account", "data.path"} <= SETTINGS.keys()


@pytest.mark.parametrize("path", SETTINGS)
def test_control_characters_are_refused_in_every_setting_of_text(path: str, base: DictConfig) -> None:
    config = opened(base)
    for value in CONTROLS:
        if path == "launch.setup" and value.startswith("a\n"):
            continue  # several lines of the script, as it says
        try:
            plant(config, SETTINGS[path], value)
        except Exception:  # noqa: S112 (what OmegaConf does not even hold)
            continue
        with pytest.raises(ConfigurationError) as caught:
            check(config)
        assert control_character(str(caught.value), "\n") is None, "the message itself steers no terminal"
    assert "control character" in str(caught.value) and path in str(caught.value)


@pytest.mark.parametrize("place", [{"launch": {"sbatch": {"a\nb": 1}}}, {"run": {"name": "${oc.env:HOSTILE}"}}])
def test_they_are_refused_in_keys_and_where_variables_lead(place: dict[str, Any], base: DictConfig,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTILE", "a\x1b[31mb")
    config = opened(base)
    config.merge_with(place)
    with pytest.raises(ConfigurationError, match="control character"):
        check(config)


def test_lines_of_the_setup_may_be_several() -> None:
    config = compose(["+cluster=mixed"])
    config.launch.setup = ["if true; then\n\tmodule load x\nfi"]
    check(config)


def script_of(config: DictConfig, folder: Path) -> str:
    return render_script(job_request(config, RunFolder(folder)))


OWN_PROGRAMS = {"launch.setup", "plugins", "launch.templates"}
"""Shell, Python and a template of the user's own."""
OF_THE_SCRIPT = {PARTITION + "account", PARTITION + "constraint", "launch.sbatch", "launch.srun_args", "launch.python"}
"""Some of those whose values stand in the script for certain."""


@pytest.mark.parametrize("path", [path for path in SETTINGS if path not in OWN_PROGRAMS])
def test_no_value_becomes_a_line_or_a_command_of_the_script(path: str, base: DictConfig, tmp_path: Path) -> None:
    usual = script_of(base, tmp_path).splitlines()
    line = next(line for line in usual if line.startswith("srun"))
    usual_words = {"apptainer", "exec", "--nv", "python3", *shlex.split(line)}
    config, written = opened(base), 0
    for value in PRINTABLE:
        plant(config, SETTINGS[path], value)
        try:
            check(config)
            script = script_of(config, tmp_path)
        except HolmesError:
            continue
        lines = script.splitlines()
        assert abs(len(lines) - len(usual)) <= 1, "an option more or less"
        for line in lines:
            if line.startswith("#SBATCH") and value in line:
                written += 1
                assert re.fullmatch(r'#SBATCH --[a-z-]+=("(\\.|[^"\\])*"|[^\s"\'#\\]+)', line), line
            elif line.startswith("srun"):
                meant = str(Path.home()) if value == "~" and path in ("launch.python", "launch.container") else value
                new = [word for word in shlex.split(line) if word not in usual_words]
                written += bool(new)
                assert all(meant in word for word in new), line
    assert written or path not in OF_THE_SCRIPT


@pytest.mark.parametrize("name", ["python", "container"])
def test_programs_of_ranks_are_no_options_and_may_lie_at_home(name: str, tmp_path: Path,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """A `~` in quotes led nowhere, which the job said after it had waited in the queue."""
    monkeypatch.setenv("HOME", "/home/me")
    config = compose(["+cluster=mixed", f"launch.{name}=~/it"])
    assert "/home/me/it" in script_of(config, tmp_path) and "~" not in script_of(config, tmp_path)
    for words in ("--wrap=id", "-x"):
        config.launch[name] = words
        with pytest.raises(ConfigurationError, match=rf"launch\.{name}={words}: it would be taken for an option"):
            script_of(config, tmp_path)
    config = compose(["+cluster=mixed", "launch.container=~/it", "launch.container_kind=pyxis"])
    assert "--container-image=/home/me/it" in script_of(config, tmp_path)


HOSTILE_FOLDER = "it's $(touch PWNED) `touch PWNED` \"; touch PWNED; #"


def test_bash_runs_nothing_of_what_comes_into_the_script(base: DictConfig, tmp_path: Path) -> None:
    """The lines themselves are run, with a program in srun's place that prints its words."""
    folder = tmp_path / HOSTILE_FOLDER
    folder.mkdir()
    config = opened(base)
    config.launch.setup = ["srun() { printf '%s\\n' \"$@\"; }"]
    config.launch.srun_args = list(PRINTABLE)
    config.launch.python = "$(touch PWNED)"
    config.launch.container = "`touch PWNED`.sif"
    config.launch.container_args = list(PRINTABLE)
    script = script_of(config, folder)
    guarded = [line for line in script.splitlines() if " -m holmes_hpc.submit." not in line]
    done = subprocess.run(["bash", "-c", "\n".join(guarded)], cwd=tmp_path, capture_output=True, text=True, timeout=30,
                          env={"PATH": os.environ["PATH"]}, check=False)
    words = done.stdout.splitlines()
    assert set(PRINTABLE) <= set(words) and str(folder) in words and "$(touch PWNED)" in words, done.stderr
    assert not list(tmp_path.rglob("PWNED"))


@pytest.mark.parametrize("name", ["a\n#SBATCH --wrap=touch PWNED", "a\nb", "a\rb"])
def test_a_current_folder_with_a_line_in_its_name_becomes_none_of_the_script(
        name: str, base: DictConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / name
    place.mkdir()
    monkeypatch.chdir(place)
    with pytest.raises(ConfigurationError, match="control character.*another name"):
        script_of(base, tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="control character"):
        script_of(base, place / "runs")


def test_names_of_options_are_names() -> None:
    for name in ("comment=x --wrap", "a b", "", "a#b", "-x"):
        with pytest.raises(ConfigurationError, match="no name of an option"):
            site_options({name: "1"}, "launch.sbatch")
    with pytest.raises(ConfigurationError, match="the value of --comment.*control character"):
        for_sbatch("a\nb", "the value of --comment")


class Tags(HTMLParser):
    """Collects the elements and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: set[tuple[str, str]] = set()
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen |= {(tag, name) for name, _ in attrs} | {(tag, "")}
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]


def test_a_page_and_a_terminal_show_hostile_names_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = compose(["+cluster=mixed"])
    OmegaConf.set_struct(config, False)
    fabrics = {"ib": "[link=http://evil]x[/link]", "roce": "<script>alert(1)</script>"}
    for label, fabric in fabrics.items():
        config.cluster.partitions[label].fabric = fabric
    config.launch.setup = list(PRINTABLE)
    config.run.folder = str(tmp_path / "runs")
    chosen = plan(config, mode="local")
    shown = io.StringIO()
    Console(file=shown, force_terminal=True, width=200).print(render(chosen, read_cluster(config.cluster)))
    assert "\x1b]8" not in shown.getvalue(), "no link"
    assert all(fabric in shown.getvalue() for fabric in fabrics.values())
    folder = make_folder(config, chosen, "local")
    error = "\n".join(PRINTABLE) + "\x1b[31m<b>red</b>"
    write_result(folder, "failed", error=error, emulated=False)
    page = report.page(read_runs(folder.path))
    tags = Tags(page)
    assert page.count("<script") == 1 and {tag for tag, _ in tags.seen}.isdisjoint({"b", "iframe", "object", "link"})
    assert tags.links and all(link.startswith(("data:image/png", "#")) for link in tags.links)
    assert not [name for _, name in tags.seen if name.startswith("on")]
    report_error("train", ConfigurationError(error))
    assert control_character(capsys.readouterr().err, "\n") is None


def test_tables_of_jobs_and_messages_steer_no_terminal() -> None:
    for hostile in (*CONTROLS, "[red]x[/red]"):
        assert control_character(for_terminal(hostile), "\n\t") is None
        assert control_character(for_html(hostile), "\n\t") is None
    row: Any = SimpleNamespace(words="", cells=lambda: ("a\x1b[2J[red]b",) * len(COLUMNS))
    shown = io.StringIO()
    Console(file=shown, width=300).print(table([row]))
    assert "\\x1b[2J[red]b" in shown.getvalue() and "\x1b" not in shown.getvalue()
    assert "\x1b" not in text([row])
