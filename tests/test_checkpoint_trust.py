"""What a checkpoint vouches for: all its bytes, SHA-256 where asked for, and that it is as new as its name."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_hpc.checkpoint.cover import unpack_covers
from holmes_hpc.checkpoint.index import INDEX_NAME, pack, read_index
from holmes_hpc.checkpoint.order import doubts, next_serial
from holmes_hpc.checkpoint.writing import Attempt, commit, write_part
from holmes_hpc.errors import CheckpointError
from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.identity import identity, make_identity
from tests.checkpoint_folders import make_checkpoint
from tests.checkpoints_for_tests import cut, load, save
from tests.engine_worlds import train_world
from tests.fuzzing import examples
from tests.runs_for_tests import train

Change = Callable[[dict[str, Any]], None]


def read(path: Path) -> int:
    """Do what a resume does with a checkpoint: read the index, the texts, and all shards."""
    read_index(path).check_texts(path)
    return load(path)


def save_hashed(folder: Path, step: int = 10) -> Path:
    attempt = Attempt(folder, step, 1, "t", hashed=True)
    write_part(attempt, 0, cut(1, (2, 1, 1), step)[0])
    return commit(attempt, {}, {"plan.json": '{"name": "a plan"}'})


def rewrite(path: Path, change: Change, *, hashed: bool = False) -> None:
    """Change the content of an index and make its own checksums fit, as a forger would."""
    content = json.loads((path / INDEX_NAME).read_text())["content"]
    change(content)
    (path / INDEX_NAME).write_text(pack(content, hashed=hashed))


@pytest.mark.parametrize("make", [lambda folder: save(folder, 10, 1), save_hashed], ids=["plain", "hashed"])
def test_every_flipped_byte_of_every_file_is_seen(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path)
    assert read(path) == 10
    for name, step in (("rank-0000.safetensors", 23), ("plan.json", 1), (INDEX_NAME, 37)):
        original = (path / name).read_bytes()
        for position in range(0, len(original), step):
            flipped = original[position] ^ 1
            (path / name).write_bytes(original[:position] + bytes([flipped]) + original[position + 1:])
            with pytest.raises(CheckpointError):
                read(path)
        (path / name).write_bytes(original)
    assert read(path) == 10


def test_headers_and_the_plan_are_named_when_they_changed(tmp_path: Path) -> None:
    path = save(tmp_path, 10, 1)
    data = bytearray((path / "rank-0000.safetensors").read_bytes())
    data[20] ^= 1
    (path / "rank-0000.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"it is damaged: the first \d+ bytes of rank-0000\.safetensors"):
        read(path)
    other = save(tmp_path, 11, 1)
    (other / "plan.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"it is damaged: the first 2 bytes of plan\.json"):
        read(other)
    (other / "plan.json").write_text("{} ")
    with pytest.raises(CheckpointError, match=r"a file is torn: plan\.json has 3 of 2 bytes"):
        read(other)
    (other / "plan.json").unlink()
    with pytest.raises(CheckpointError, match=r"a file is missing: plan\.json"):
        read(other)


def test_checkpoints_of_older_versions_are_loaded(tmp_path: Path) -> None:
    path = save(tmp_path, 10, 2)

    def as_before(content: dict[str, Any]) -> None:
        del content["covers"], content["files"]["plan.json"]

    rewrite(path, as_before)
    (path / "plan.json").unlink()
    assert read(path) == 10


@pytest.mark.parametrize("name", ["../other", "fifo", "plan.json/x"])
def test_files_that_are_not_beside_the_index_are_not_opened(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, 10, 1)
    os.mkfifo(path / "fifo")
    rewrite(path, lambda content: content["covers"].update({name: [1, 0, ""]}))
    with pytest.raises(CheckpointError, match="it is foreign"):
        read(path)
    rewrite(path, lambda content: content["files"].update({name: 1}))
    with pytest.raises(CheckpointError, match="it is foreign"):
        read(path)


@examples(60)
@given(covers=st.one_of(st.none(), st.integers(), st.lists(st.integers()), st.dictionaries(st.text(), st.one_of(
    st.none(), st.text(), st.lists(st.one_of(st.integers(), st.text(), st.none(), st.floats()), max_size=4)))))
def test_nonsense_for_checksums_is_refused_in_words(covers: Any) -> None:
    try:
        found = unpack_covers(covers)
    except CheckpointError:
        return
    assert all(0 <= cover.length <= 2**32 and isinstance(cover.sha256, str) for cover in found.values())


def test_the_manifest_is_the_hash_of_all_the_index_says(tmp_path: Path) -> None:
    path = save_hashed(tmp_path)
    content = json.loads((path / INDEX_NAME).read_text())["content"]
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    assert read_index(path).manifest == hashlib.sha256(canonical).hexdigest()
    for key, _, _, _, _, file, begin, length, _, sha256 in content["shards"]:
        data = (path / file).read_bytes()[begin:begin + length]
        assert sha256 == hashlib.sha256(data).hexdigest(), key
    assert content["covers"]["plan.json"][2] == hashlib.sha256((path / "plan.json").read_bytes()).hexdigest()
    assert read_index(save(tmp_path / "plain", 10)).manifest == ""
    text = (path / INDEX_NAME).read_text()
    (path / INDEX_NAME).write_text(text.replace(read_index(path).manifest, "0" * 64))
    with pytest.raises(CheckpointError, match=r"the SHA-256 of checkpoint\.json does not fit"):
        read_index(path)


def test_data_changed_together_with_its_checksum_has_not_its_sha256(tmp_path: Path) -> None:
    path = save_hashed(tmp_path)
    shard = read_index(path).shards[0]
    data = bytearray((path / shard.file).read_bytes())
    data[shard.begin] ^= 1
    (path / shard.file).write_bytes(data)

    def forge(content: dict[str, Any]) -> None:
        content["shards"][0][8] = zlib.crc32(data[shard.begin:shard.begin + shard.length])

    rewrite(path, forge, hashed=True)
    with pytest.raises(CheckpointError, match=r"a shard is not what was saved: .* does not have its SHA-256"):
        read(path)


def state(step: int, serial: int | None = None, run: str = "/runs/a", hour: int | None = None,
          **others: Any) -> dict[str, Any]:
    """Return what an index says of a state: consistent, but for `others`."""
    found: dict[str, Any] = {"run": run, "data": {"next_step": step + 1},
                             "parts": {"optimizer": {"numbers": {"optimizer.steps": step - 1, "skipped_steps": 1}}}}
    found |= {} if serial is None else {"serial": serial}
    return found | ({} if hour is None else {"time": f"2026-01-01T{hour:02}:00:00+00:00"}) | others


def said(folder: Path, step: int, states: dict[int, dict[str, Any]]) -> str:
    paths = {each: make_checkpoint(folder / f"step-{each:06d}", each, extra) for each, extra in states.items()}
    return "; ".join(doubts(paths[step], read_index(paths[step])))


def test_checkpoints_in_their_order_are_not_doubted(tmp_path: Path) -> None:
    assert said(tmp_path / "a", 20, {10: state(10, 1), 20: state(20, 2), 30: state(30, 3)}) == ""
    assert said(tmp_path / "b", 20, {10: state(10, hour=1), 20: state(20, hour=1)}) == ""
    assert said(tmp_path / "c", 20, {10: {}, 20: {}}) == ""
    assert said(tmp_path / "clocks", 20, {10: state(10, 1, hour=9), 20: state(20, 2, hour=3)}) == "", (
        "where numbers are known, no clock decides")


@pytest.mark.parametrize(("states", "words"), [
    ({10: state(10, 5), 20: state(20, 4)}, "step-000010 beside it was written after it (number 5 of its folder"),
    ({10: state(10, hour=5), 20: state(20, hour=4)}, "by the clocks of their nodes"),
    ({20: state(10)}, "an older or newer state stands under this name"),
    ({20: state(20, data={"next_step": 11})}, "that step 11 comes next"),
    ({10: state(10, 1), 20: state(20, 2, "/runs/b")}, "written by the run b, and step-000010 beside it by a"),
    ({20: state(20, 2), 30: state(30, 3, "/runs/b")}, "written by the run a, and step-000030 beside it by b"),
])
def test_an_older_state_under_a_newer_name_is_named(tmp_path: Path, states: dict[int, dict[str, Any]],
                                                    words: str) -> None:
    assert words in said(tmp_path, 20, states)


@pytest.mark.parametrize("extra", [
    {"parts": 3}, {"parts": {"optimizer": []}}, {"parts": {"optimizer": {"numbers": {"optimizer.steps": "x"}}}},
    {"data": None}, {"run": 5}, {"serial": -1}, {"serial": True}, {"time": 7}, {"time": "2026-01-01"},
])
def test_nonsense_in_an_index_is_no_doubt_and_no_error(tmp_path: Path, extra: dict[str, Any]) -> None:
    assert said(tmp_path, 20, {10: state(10), 20: extra, 30: extra}) == ""


def test_a_checkpoint_of_another_run_alone_in_a_runs_folder_is_named(tmp_path: Path) -> None:
    """Copies of a whole folder keep its word; older checkpoints have none, and nothing is known of them."""
    folder = RunFolder(tmp_path / "b")
    folder.checkpoints.mkdir(parents=True)
    assert identity(folder) is None
    own = make_identity(folder)
    assert own is not None and make_identity(folder) == own == identity(folder)
    path = make_checkpoint(folder.checkpoints / "step-000020", 20, state(20, 1, "/runs/a", identity="0" * 16))
    foreign = read_index(path)
    for owner in (own, None):
        assert "it was written by another run (a), and lies in this one's folder" in "".join(
            doubts(path, foreign, owner))
    assert [*doubts(path, foreign)] == [] == [*doubts(path, foreign, "0" * 16)]
    shutil.copytree(folder.path, tmp_path / "copied")
    assert identity(RunFolder(tmp_path / "copied")) == own
    older = make_checkpoint(tmp_path / "old" / "step-000020", 20, state(20, 1))
    assert [*doubts(older, read_index(older), own)] == []
    for damaged in ("", "x", "0" * 300):
        (folder.path / "identity").write_text(damaged)
        assert identity(folder) is None


def test_serial_numbers_go_on_above_all_that_is_there(tmp_path: Path) -> None:
    assert next_serial(tmp_path / "none") == 1
    for step, serial in ((10, 7), (20, 3)):
        make_checkpoint(tmp_path / f"step-{step:06d}", step, state(step, serial))
    (tmp_path / "step-000030").mkdir()
    assert next_serial(tmp_path) == 8


def test_a_checkpoint_without_sha256_is_said_where_they_are_asked_for(tmp_path: Path) -> None:
    alone = ["+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=1", "train.steps=4"]
    said: list[str] = []

    def words(*overrides: str) -> tuple[Path, str]:
        world = train_world(tmp_path, [*alone, "train.checkpoint_every=2", *overrides], look=lambda trainer: said,
                            before=lambda trainer: setattr(trainer._checkpoints, "_say", said.append))
        return world.folder.checkpoints / "step-000002", "\n".join(world.seen[0])

    plain, _ = words()
    hashed, spoken = words("train.checkpoint_sha256=true", f"train.resume={plain}")
    assert f"WARNING: {plain} has no SHA-256, although train.checkpoint_sha256=true" in spoken
    hashed = hashed.with_name("step-000004")
    assert read_index(hashed).is_hashed and not read_index(plain).is_hashed
    _, spoken = words("train.checkpoint_sha256=true", f"train.resume={hashed}", "train.steps=6")
    assert "the manifest of" in spoken and "has no SHA-256" not in spoken
    _, spoken = words(f"train.resume={plain}")
    assert "has no SHA-256" not in spoken


@pytest.mark.emulated
def test_the_command_says_the_manifest_and_the_doubt(tmp_path: Path) -> None:
    options = ["+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=1", "model.num_layers=1",
               "model.hidden_size=16", "model.num_heads=2", "model.sequence_length=16", "train.global_batch_size=4",
               "train.checkpoint_every=2", "train.checkpoint_sha256=true", "train.timeline_every=0",
               "optimizer.warmup_steps=1", "train.validation_samples=2"]
    first = train(tmp_path, [*options, "train.steps=4"])
    folder = first.folder / "checkpoints"
    for step in (2, 4):
        manifest = read_index(folder / f"step-{step:06d}").manifest
        assert re.search(rf"step-{step:06d} written in .* SHA-256 {manifest}", first.stderr)
    older = folder / "step-000006"
    shutil.copytree(folder / "step-000002", older)
    rewrite(older, lambda content: content.update(step=6), hashed=True)
    resumed = train(tmp_path, [*options, "train.steps=8", f"train.resume={first.folder}"])
    assert f"the manifest of {older} has the SHA-256 {read_index(older).manifest}" in resumed.stderr
    assert f"WARNING: {older}: its index says step 6, and its optimizer has made 2 updates" in resumed.stderr
    serials = [read_index(path).extra["serial"] for path in sorted((resumed.folder / "checkpoints").iterdir())]
    assert serials == [1]
