"""Every command that the documentation prints is one: its overrides compose, its arguments are understood.

Nothing is started here: commands that compose a configuration are composed, of the others the arguments are read. A
cluster file of a reader's own, such as `mine`, is a copy of `mixed`.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc import registry
from holmes_hpc.cli import ANALYSIS_VERBS, HYDRA_VERBS, PLAIN_VERBS
from holmes_hpc.config.compose import compose, compose_sweep
from holmes_hpc.values.tracker_kinds import TRACKER_KINDS
from tests.runs_for_tests import ROOT, run

PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md")
                                     if path.name != "settings.md" and "generated" not in path.parts)]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
_COMMAND = re.compile(r"(?:^|\s)((?:holmes|python -m (?:holmes_hpc|analysis)\.[\w.]+|make train ARGS=)(?:\s|\"|$).*)")
_OPTIONAL = re.compile(r"\[((?:--|\+cluster)[^\]]*)\]")
_SHIPPED = {path.stem for path in (ROOT / "conf" / "cluster").glob("*.yaml")}
_NOT_WHOLE = ("...", "…", "[overrides]", "KEY=VALUE", "VERB")


def commands(text: str) -> Iterator[str]:
    """Yield the commands of a page: lines of blocks without a language, and inline code that begins as one."""
    for language, block in _FENCE.findall(text):
        if language in ("", "bash", "sh", "console"):
            for line in block.replace("\\\n", " ").splitlines():
                if match := _COMMAND.search(line.removeprefix("$ ")):
                    yield match[1]
    for code in _INLINE.findall(_FENCE.sub("", text)):
        if match := _COMMAND.match(code.replace("\n", " ")):
            yield match[1]


def words_of(command: str) -> list[str]:
    """Return the verb and its arguments, without comments, redirections and what follows in a pipe."""
    if command.startswith("make train ARGS="):
        command = "holmes train +cluster=mixed " + shlex.split(command, comments=True)[2].removeprefix("ARGS=")
    words = shlex.split(command, comments=True)
    ends = [place for place, word in enumerate(words) if word in (">", "|", ";", "&&", ">>", "&")]
    words = words[: ends[0]] if ends else words
    if words[0] == "holmes":
        return words[1:]
    return [words[2].removeprefix("holmes_hpc.").removeprefix("analysis."), *words[3:]]


FOUND = sorted({(page.name, command.strip()) for page in PAGES for command in commands(page.read_text())
                if not any(part in command for part in _NOT_WHOLE)})


@pytest.fixture(name="reader")
def reader_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a reader a home with the examples of the documentation; take back what plug-ins add."""
    before = {name: dict(each) for name, each in registry.ALL.items()}
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    monkeypatch.chdir(tmp_path)
    packages = tmp_path / "packages"  # those that a page tells its reader to install for a tracker
    for name in TRACKER_KINDS:
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(packages)
    examples = ROOT / "docs" / "examples"
    shutil.copytree(examples, tmp_path / "docs" / "examples")
    shutil.copytree(examples / "plugins", tmp_path / "plugins")
    shutil.copytree(examples / "conf", tmp_path / ".config" / "holmes_hpc")
    yield tmp_path
    for name, entries in before.items():
        registry.ALL[name].replace_all(entries)


def test_the_pages_have_commands() -> None:
    assert len(FOUND) > 40
    verbs = {words_of(command)[0] for _, command in FOUND if words_of(command)}
    assert {"train", "plan", "doctor", "probe", "site", "jobs", "logs", "compare", "calibrate", "throughput"} <= verbs


@pytest.mark.parametrize(("page", "command"), FOUND, ids=[f"{page}: {command[:70]}" for page, command in FOUND])
def test_a_printed_command_is_understood(page: str, command: str, reader: Path, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    whole = _OPTIONAL.sub(r"\1", command).replace("NAME", "mixed")
    verb, *arguments = words_of(re.sub(r"(?<=--rank )N\b|(?<=--lines )N\b", "1", whole)) or ["--help"]
    if verb in HYDRA_VERBS:
        _compose(verb, arguments, reader)
    elif verb in ANALYSIS_VERBS or verb in PLAIN_VERBS or verb.startswith("data."):
        _read_arguments(verb, arguments, monkeypatch, capsys)
    else:
        option = verb in ("--help", "--version", "-sc", "VERB", "cli")
        assert option or importlib.util.find_spec(f"holmes_hpc.{verb}"), f"{page}: no such command"


def _compose(verb: str, arguments: list[str], reader: Path) -> None:
    sweep = any(word in ("-m", "--multirun") for word in arguments)
    # Other sweepers are packages of their own; what they choose from is written as for Hydra's own.
    overrides = [_with_model(word, reader) for word in arguments
                 if not word.startswith(("-", "hydra/sweeper=", "hydra.sweeper."))]
    for name in re.findall(r"\+cluster=([\w,-]+)", " ".join(overrides)):
        for each in set(name.split(",")) - _SHIPPED:
            path = reader / ".config" / "holmes_hpc" / "cluster" / f"{each}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                path.write_text(f"defaults: [mixed]\nname: {each}\n")
    named = any(word.startswith("+cluster=") for word in overrides)
    if sweep:
        assert len(compose_sweep(overrides, cluster_required=named)) > 1
    elif named or not overrides:
        compose(overrides, cluster_required=named)
    else:  # a setting named alone, as in `holmes train parallel.pipeline=2`
        compose(["+cluster=mixed", *overrides])


def _with_model(word: str, reader: Path) -> str:
    """Return an override; a folder with a published model is one that is there."""
    if not word.startswith("model.from_pretrained="):
        return word
    (reader / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 300,
        "num_attention_heads": 2}))
    return f"model.from_pretrained={reader}"


class _UnderstoodError(Exception):
    """The arguments were read, and nothing more shall happen."""


def _read_arguments(verb: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch,
                    capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("parse_args", "parse_intermixed_args"):
        read = getattr(argparse.ArgumentParser, name)

        def parse(parser: argparse.ArgumentParser, *given: object, read: Any = read, **options: object) -> None:
            read(parser, *given, **options)
            raise _UnderstoodError

        monkeypatch.setattr(argparse.ArgumentParser, name, parse)
    module = f"analysis.{verb}" if verb in ANALYSIS_VERBS else PLAIN_VERBS.get(verb, f"holmes_hpc.{verb}")
    try:
        importlib.import_module(module).main(arguments)
    except _UnderstoodError:
        return
    except SystemExit as end:
        assert not end.code or not arguments, capsys.readouterr().err  # a verb named alone, in a sentence


def _runs_here(command: str) -> bool:
    """Whether a command plans or trains on a shipped cluster with what every machine has."""
    verb, *arguments = words_of(command) or [""]
    text = " ".join(arguments)
    names = re.findall(r"\+cluster=([\w,]+)", text)
    needs = ("resume=", "from_pretrained=", "run.trackers=[", "path:",
             "path=", "plugins=", "launch.", "hydra.", "model=gpt_7_5b", "picture=", "NAME", "[--")
    return verb in ("plan", "train") and bool(names) and set(names[0].split(",")) <= _SHIPPED - {
        "holmes_paper", "uniform"} and not any(need in text for need in needs)


def _jobs(command: str) -> frozenset[tuple[str, ...]]:
    """Return the verb and overrides of every job that a command starts: of a sweep more than one."""
    verb, *arguments = words_of(command)
    if "-m" not in arguments:
        return frozenset({(verb, *arguments)})
    swept = [[f"{key}={value}" for value in values.split(",")]
             for key, _, values in (word.rpartition("=") for word in arguments if word != "-m")]
    return frozenset((verb, *job) for job in itertools.product(*swept))


def _run_here() -> list[str]:
    """Return the commands that are run: of those that start the same jobs one, and none whose jobs a sweep has too."""
    by_jobs = {_jobs(command): command for _, command in reversed(FOUND) if _runs_here(command)}
    return sorted(command for jobs, command in by_jobs.items() if not any(jobs < others for others in by_jobs))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.emulated
@pytest.mark.parametrize("command", _run_here(), ids=str)
def test_a_printed_command_that_plans_or_trains_does_so(command: str, tmp_path: Path) -> None:
    verb, *arguments = words_of(command)
    short = ["train.steps=2", "train.validate_every=0", "train.validation_samples=4"] if verb == "train" else []
    short += ["run.pictures=false"] if "-m" in arguments else []  # the commands of one run draw theirs
    done = run(tmp_path, verb, [*arguments, *short], timeout=800)
    assert done.status == 0, done.stdout[-2000:] + done.stderr[-2000:]
