"""Data files and the run's place are looked at before anything is planned, launched or made."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from omegaconf import OmegaConf

from holmes_hpc.architecture import Architecture
from holmes_hpc.config.compose import compose
from holmes_hpc.config.schema import Data, Model
from holmes_hpc.data.before import check_data_exists, check_data_files
from holmes_hpc.data.token_file import TokenFileWriter
from holmes_hpc.errors import ConfigurationError, RunFailedError
from holmes_hpc.launch import train
from holmes_hpc.runs import RunFolder
from tests.data_sources import write_megatron
from tests.runs_for_tests import ROOT, open_to_all, ordinary_user


def checked(*overrides: str) -> None:
    """Check data with the schema's defaults and these overrides, `data=KIND` first."""
    words = ["name=" + overrides[0].removeprefix("data="), *(word.removeprefix("data.") for word in overrides[1:])]
    data = OmegaConf.merge(OmegaConf.structured(Data), {"cache": "cache"}, OmegaConf.from_dotlist(words))
    model = OmegaConf.merge(OmegaConf.structured(Model), {"sequence_length": 8, "vocab_size": 256})
    check_data_files(data, Architecture.from_config(model))


def write_files(folder: Path) -> None:
    """Write good and bad data files of every kind, all below the working folder."""
    (folder / "good.bin").write_bytes(bytes([7, 0]) * 4000)
    (folder / "odd.bin").write_bytes(bytes(4001))
    (folder / "large.bin").write_bytes(bytes([255, 255]) * 4000)
    (folder / "short.bin").write_bytes(bytes(20))
    (folder / "empty.bin").write_bytes(b"")
    (folder / "bad.tokens").write_bytes(b"no header" * 100)
    (folder / "folder.bin").mkdir()
    write_megatron(folder / "pair", [[1, 2, 3]] * 1000)
    write_megatron(folder / "cut", [[1, 2, 3]] * 1000)
    (folder / "cut.bin").write_bytes(bytes(10))
    write_megatron(folder / "half", [[1, 2, 3]] * 1000)
    (folder / "half.idx").unlink()
    (folder / "texts").mkdir()
    (folder / "texts" / "a.txt").write_text("A line of text.\n" * 100)
    (folder / "few").mkdir()
    (folder / "few" / "a.txt").write_text("Few.")
    text = "Wide letters, one after the other.\n" * 50
    (folder / "marked.txt").write_bytes(text.encode("utf-16"))
    (folder / "little.txt").write_bytes(text.encode("utf-16-le"))
    (folder / "big.txt").write_bytes(text.encode("utf-16-be"))
    (folder / "widest.txt").write_bytes(text.encode("utf-32-le"))
    (folder / "zipped.txt").write_bytes(gzip.compress(os.urandom(5000)))
    (folder / "torn.txt").write_bytes(text.encode() + bytes(500))
    (folder / "single.txt").write_bytes(b"caf\xe9 " * 500)
    (folder / "marked8.txt").write_bytes(text.encode("utf-8-sig"))
    (folder / "none").mkdir()
    (folder / "empty.tokens").write_bytes(b"")
    numpy.save(folder / "zero.npy", numpy.zeros(0, dtype=numpy.uint16))
    write_megatron(folder / "bare", [[1, 2, 3]])
    (folder / "bare.bin").write_bytes(b"")
    os.mkfifo(folder / "pipe")
    (folder / "pipes").mkdir()
    os.mkfifo(folder / "pipes" / "a.txt")
    (folder / "blank").mkdir()
    (folder / "blank" / "a.txt").write_text("")
    (folder / "tokenizer.json").write_text("{}")
    with TokenFileWriter(folder / "wide.tokens", vocab_size=70000) as writer:
        writer.write(numpy.arange(5000))


GOOD = [
    ["data=python_docs"],
    ["data=tokens", "data.path=good.bin"],
    ["data=megatron", "data.path=pair"],
    ["data=text", "data.path=texts"],
    ["data=text", "data.path=single.txt"],
    ["data=text", "data.path=marked8.txt"],
    ["data=mixture", "data.sources=[{name: tokens, path: good.bin}, {name: python_docs}]"],
    ["data=tokens", "data.path=missing.bin", "data.check_before_start=false"],
]

BAD = [
    (["data=tokens", "data.path=missing.bin"], "data.path=missing.bin is no file"),
    (["data=tokens", "data.path=no/such.bin"], "the folder no does not exist"),
    (["data=tokens", "data.path=folder.bin"], "but a folder"),
    (["data=tokens", "data.path=odd.bin"], "4001 bytes, not a multiple of the 2"),
    (["data=tokens", "data.path=large.bin"], "holds token 65535"),
    (["data=tokens", "data.path=short.bin"], "has 10 tokens"),
    (["data=tokens", "data.path=empty.bin"], "data.path=empty.bin is empty (0 bytes): whatever wrote"),
    (["data=tokens", "data.path=empty.tokens"], "data.path=empty.tokens is empty (0 bytes)"),
    (["data=tokens", "data.path=zero.npy"], "data.path=zero.npy holds no tokens at all"),
    (["data=megatron", "data.path=bare"], "bare.bin is empty (0 bytes)"),
    (["data=tokens", "data.path=pipe"], "data.path=pipe is no file"),
    (["data=text", "data.path=pipes"], "it is no regular file"),
    (["data=text", "data.path=pipe"], "data.path=pipe is no folder"),
    (["data=text", "data.path=texts", "data.tokenizer=pipe"], "pipe cannot be read: it is no regular file"),
    (["data=text", "data.path=marked.txt"], "marked.txt is UTF-16, whose null bytes would be trained on"),
    (["data=text", "data.path=little.txt"], "iconv -f UTF-16LE -t UTF-8"),
    (["data=text", "data.path=big.txt"], "iconv -f UTF-16BE -t UTF-8"),
    (["data=text", "data.path=widest.txt"], "iconv -f UTF-32LE -t UTF-8"),
    (["data=text", "data.path=zipped.txt"], "zipped.txt is compressed (gzip), and no text"),
    (["data=text", "data.path=torn.txt"], "has a null byte at 1750 (500 of 2250 bytes there)"),
    (["data=text", "data.path=blank"], "data.path=blank holds no tokens at all"),
    (["data=tokens", "data.path=bad.tokens"], "does not begin with the magic"),
    (["data=tokens", "data.path=wide.tokens"], "vocabulary of 70000 tokens"),
    (["data=megatron", "data.path=missing"], "missing.idx is no file"),
    (["data=megatron", "data.path=half"], "half.idx is no file"),
    (["data=megatron", "data.path=cut"], "do not belong together"),
    (["data=text", "data.path=missing"], "data.path=missing is no folder"),
    (["data=text", "data.path=none"], "data.path=none is a folder without any file"),
    (["data=text", "data.path=texts", "data.pattern=a.md"], "data.path=texts has 1 file, and none that matches"),
    (["data=text", "data.path=few"], "has 4 tokens"),
    (["data=text", "data.path=texts", "data.tokenizer=missing.json"], "data.tokenizer=missing.json cannot be read"),
    (["data=text", "data.path=texts", "data.tokenizer=texts"], "data.tokenizer=texts cannot be read"),
    (["data=text", "data.path=texts", "data.cache=good.bin/cache"], "data.cache=good.bin/cache cannot be written"),
    (["data=mixture", "data.sources=[{name: python_docs}, {name: tokens, path: odd.bin}]"], "data.sources.1.path="),
]


@pytest.fixture(name="files")
def made_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("overrides", GOOD, ids=" ".join)
def test_good_files_pass_and_the_check_makes_nothing(overrides: list[str], files: Path) -> None:
    before = sorted(files.rglob("*"))
    checked(*overrides)
    assert sorted(files.rglob("*")) == before


@pytest.mark.parametrize(("overrides", "message"), BAD, ids=lambda value: " ".join(value)[:60])
def test_bad_files_are_refused_with_the_setting_that_leaves_them_to_the_ranks(overrides: list[str], message: str,
                                                                              files: Path) -> None:
    before = sorted(files.rglob("*"))
    with pytest.raises(ConfigurationError) as refused:
        checked(*overrides)
    assert message in str(refused.value)
    assert refused.value.exit_status == 2 and "data.check_before_start=false" in str(refused.value)
    assert sorted(files.rglob("*")) == before


@pytest.mark.parametrize("overrides", GOOD, ids=" ".join)
def test_a_plan_takes_the_good_ones_too(overrides: list[str], files: Path) -> None:
    before = sorted(files.rglob("*"))
    data = compose(["+cluster=mixed", "model.sequence_length=8", *overrides]).data
    assert check_data_exists(data) is None and sorted(files.rglob("*")) == before


def test_the_check_needs_no_torch(files: Path) -> None:
    program = """
import sys
from holmes_hpc.architecture import Architecture
from holmes_hpc.config.compose import compose
from holmes_hpc.data.before import check_data_files
for path in ("good.bin", "odd.bin"):
    config = compose(["+cluster=mixed", "model.sequence_length=8", "data=tokens", f"data.path={path}"])
    assert "torch" not in sys.modules, "torch is loaded"
    check_data_files(config.data, Architecture.from_config(config.model))
"""
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=files,
                          capture_output=True, text=True, check=False)
    assert "4001 bytes" in done.stderr.splitlines()[-1], done.stderr


def test_a_file_that_may_not_be_read_is_refused(files: Path) -> None:
    checked("data=tokens", "data.path=good.bin")
    (files / "good.bin").chmod(0)
    open_to_all(files)
    with ordinary_user(), pytest.raises(ConfigurationError, match=r"good\.bin.*cannot be read.*Permission denied"):
        checked("data=tokens", "data.path=good.bin")


def refuse_to_plan(config: object, mode: str | None = None) -> None:
    raise AssertionError("planned before the checks")


@pytest.mark.parametrize(("overrides", "message"), [
    (["data=tokens", "data.path=missing.bin"], "missing.bin"),
    (["run.folder=good.bin/runs"], "run.folder=good.bin/runs"),
    (["run.folder=/proc/runs"], "run.folder=/proc/runs"),
    (["run.name=a/b"], "run.name"),
])
def test_nothing_is_planned_and_no_folder_made_where_the_run_cannot_start(
    overrides: list[str], message: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "plan", refuse_to_plan)
    before = sorted(files.rglob("*"))
    with pytest.raises(ConfigurationError, match=message):
        train.train(compose(["+cluster=mixed", "launch.mode=local", *overrides]))
    assert sorted(files.rglob("*")) == before


@pytest.mark.emulated
def test_a_full_disk_is_seen_before_planning(monkeypatch: pytest.MonkeyPatch, files: Path) -> None:
    program = """
import json, os, sys
from pathlib import Path
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.runs.place import check_place
place = Path(sys.argv[1])
check_place(place / "runs", "mixed")
left = os.statvfs(place)
(place / "filler").write_bytes(bytes((left.f_bavail - 2) * left.f_frsize))
try:
    check_place(place / "runs", "mixed")
except ConfigurationError as error:
    print(json.dumps([str(error), sorted(path.name for path in place.iterdir())]))
"""
    within = ["unshare", "-Urm", "sh", "-c", 'mount -t tmpfs -o size=200k tmpfs /mnt && exec "$@"', "sh"]
    if subprocess.run([*within, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no small file system can be mounted here")
    done = subprocess.run([*within, sys.executable, "-c", program, "/mnt"], cwd=ROOT, capture_output=True, text=True,
                          check=True)
    message, left = json.loads(done.stdout)
    assert "run.folder=/mnt/runs" in message and "full" in message
    assert left == ["filler"]


def test_a_run_folder_that_cannot_be_filled_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(folder: RunFolder, path: Path, text: str) -> None:
        if path.name == "plan.json":
            raise RunFailedError("full")
        path.write_text(text)

    monkeypatch.setattr(RunFolder, "write_text", write)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "other").mkdir()
    with pytest.raises(RunFailedError, match="full"):
        RunFolder.create(tmp_path / "runs", "mixed", {"config.yaml": "{}", "plan.json": "{}"})
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "runs", tmp_path / "runs" / "other"]
    with pytest.raises(RunFailedError, match="full"):
        RunFolder.create(tmp_path / "new" / "runs", "mixed", {"plan.json": "{}"})
    assert not (tmp_path / "new").exists()
