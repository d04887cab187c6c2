"""Checkpoints on disk: any cut fills any other; what is torn, damaged or foreign is refused with the reason."""

from __future__ import annotations

import functools
import itertools
import json
import os
import pickletools
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holmes_hpc.architecture import Architecture
from holmes_hpc.checkpoint.entries import Entry
from holmes_hpc.checkpoint.index import INDEX_NAME, pack, read_index
from holmes_hpc.checkpoint.model import check_model, model_description
from holmes_hpc.checkpoint.naming import (
    candidates,
    checkpoint_path,
    looking_again,
    newest_first,
    partial_path,
    publish,
    remove_older,
    tidy,
)
from holmes_hpc.checkpoint.reading import fill
from holmes_hpc.checkpoint.rectangles import Rectangle, intersection, remainder
from holmes_hpc.checkpoint.shard_file import read_shard, write_shards
from holmes_hpc.checkpoint.staging import Staging
from holmes_hpc.checkpoint.writing import Attempt, commit, write_part
from holmes_hpc.config.compose import compose
from holmes_hpc.errors import CheckpointError
from tests.checkpoints_for_tests import SHAPES, cut, load, save, whole
from tests.fuzzing import examples

CUTS = [(1, (1, 1, 1)), (2, (2, 1, 1)), (3, (1, 3, 2)), (4, (3, 4, 5))]


@pytest.mark.parametrize(("written", "read"), list(itertools.product(CUTS, CUTS)))
def test_any_cut_fills_any_other(tmp_path, written, read):
    path = save(tmp_path, 10, *written)
    assert path == tmp_path / "step-000010"
    assert load(path, *read) == 10
    assert read_index(path).extra == {"loss_scale": 65536.0}
    assert (path / "plan.json").read_text() == "{}"
    assert [p.name for p in tmp_path.iterdir()] == ["step-000010"]
    assert sorted(p.suffix for p in path.iterdir()) == sorted([".json"] * 2 + [".safetensors"] * written[0])


def box(dims):
    return st.tuples(st.lists(st.integers(0, 6), min_size=dims, max_size=dims),
                     st.lists(st.integers(1, 5), min_size=dims, max_size=dims)).map(
        lambda pair: Rectangle(tuple(pair[0]), tuple(pair[1])))


def points(rectangle):
    return set(itertools.product(*(range(o, o + s) for o, s in
                                   zip(rectangle.offsets, rectangle.sizes, strict=True))))


@examples(150)
@given(st.integers(0, 3).flatmap(lambda dims: st.tuples(box(dims), box(dims))))
def test_boxes_meet_and_leave_what_sets_of_points_do(pair):
    first, second = pair
    shared = intersection(first, second)
    assert (points(shared) if shared else set()) == points(first) & points(second)
    if shared:
        rest = remainder(first, shared)
        assert set().union(*map(points, rest)) == points(first) - points(second)
        assert sum(each.volume for each in rest) == first.volume - shared.volume, "they are disjoint"


def test_overlapping_shards_fill_too(tmp_path):
    attempt = Attempt(tmp_path, 1, 2, "t")
    full = whole("model/matrix")
    write_part(attempt, 0, [Entry("model/matrix", (7, 10), (0, 0), (5, 10), full[:5])])
    write_part(attempt, 1, [Entry("model/matrix", (7, 10), (3, 0), (4, 10), full[3:].clone())])
    path = commit(attempt, {}, {})
    found = Entry("model/matrix", (7, 10), (0, 0), (7, 10), torch.zeros(7, 10))
    fill(path, read_index(path), [found])
    assert torch.equal(found.tensor, full)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64,
                                   torch.uint8, torch.bool])
def test_every_type_is_stored_and_a_destination_converts(tmp_path, dtype):
    tensor = (torch.arange(12).view(3, 4) % 7).to(dtype)
    file = tmp_path / "x.safetensors"
    _, shards = write_shards(file, [Entry("a", (3, 4), (0, 0), (3, 4), tensor), Entry("s", (), (), (), tensor[1, 2])])
    with file.open("rb") as opened:
        read = [read_shard(opened, shard) for shard in shards]
    assert read[0].dtype == dtype
    assert torch.equal(read[0], tensor)
    assert torch.equal(read[1], tensor[1, 2])


def test_a_type_that_cannot_be_stored_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="complex64"):
        write_shards(tmp_path / "x", [Entry("a", (1,), (0,), (1,), torch.zeros(1, dtype=torch.complex64))])


def test_an_entry_that_is_no_part_of_its_tensor_is_an_error():
    for offsets, sizes in (((6, 0), (2, 10)), ((0,), (7,)), ((-1, 0), (2, 10)), ((0, 0), (3, 10))):
        with pytest.raises(ValueError, match="no part"):
            Entry("model/matrix", (7, 10), offsets, sizes, torch.zeros(2, 10))


def test_large_rectangles_are_cut_by_rows():
    entry = Entry("a", (100, 8), (10, 2), (50, 4), torch.arange(200.0).view(50, 4))
    pieces = list(entry.pieces(largest_bytes=3 * 16 + 5))
    assert [piece.offsets[0] for piece in pieces] == list(range(10, 60, 3))
    assert {piece.offsets[1] for piece in pieces} == {2}
    assert torch.equal(torch.cat([piece.tensor for piece in pieces]), entry.tensor)
    assert len(list(entry.pieces(largest_bytes=1))) == 50, "a row is the least"
    assert list(Entry("a", (4,), (4,), (0,), torch.zeros(0)).pieces()) == []


def test_data_files_are_safetensors(tmp_path):
    path = save(tmp_path, 3, 1, (2, 1, 1))
    data = (path / "rank-0000.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    place = header["model/matrix@1,0"]
    begin, end = place["data_offsets"]
    assert (place["dtype"], place["shape"]) == ("F32", [6, 10])
    values = torch.frombuffer(bytearray(data[8 + length + begin:8 + length + end]), dtype=torch.float32)
    assert torch.equal(values.view(6, 10), whole("model/matrix", 3)[1:])
    ends = sorted(place["data_offsets"] for name, place in header.items() if name != "__metadata__")
    assert [b for b, _ in ends[1:]] == [e for _, e in ends[:-1]], "no holes"
    assert ends[-1][1] == len(data) - 8 - length


def test_nothing_in_a_checkpoint_is_a_pickle(tmp_path):
    files = {file.name: file for file in save(tmp_path, 3).iterdir()}
    assert files.keys() == {INDEX_NAME, "plan.json", "rank-0000.safetensors", "rank-0001.safetensors"}
    for file in files.values():
        with pytest.raises(ValueError, match=r"."):
            list(pickletools.genops(file.read_bytes()))
    package = Path(__file__).parent.parent / "holmes_hpc"
    for source in package.rglob("*.py"):
        words = source.read_text()
        assert "import pickle" not in words, source
        assert "torch.load(" not in words, source


def damage_of(kind: str, path: Path) -> str:
    """Damage a checkpoint and return what the message must say."""
    data = path / "rank-0001.safetensors"
    if kind == "missing shard":
        data.unlink()
        return r"a shard is missing: rank-0001\.safetensors is not there"
    if kind == "torn shard":
        os.truncate(data, data.stat().st_size - 1)
        return r"a shard is torn: rank-0001\.safetensors has [\d,]+ of [\d,]+ bytes"
    if kind == "missing index":
        (path / INDEX_NAME).unlink()
        return r"it is torn: it has no checkpoint\.json, which is written last"
    if kind == "torn index":
        os.truncate(path / INDEX_NAME, 700)
        return r"it is torn: checkpoint\.json is no whole JSON"
    if kind == "changed index":
        text = (path / INDEX_NAME).read_text()
        (path / INDEX_NAME).write_text(text.replace('"step": 10', '"step": 11'))
        return r"it is damaged: the checksum of checkpoint\.json does not fit"
    if kind == "foreign index":
        (path / INDEX_NAME).write_text('{"format": "another"}')
        return r"it is foreign: checkpoint\.json is no index of holmes_hpc"
    if kind == "later format":
        (path / INDEX_NAME).write_text(pack({}).replace('"format_version": 1', '"format_version": 9'))
        return "it has the format 9"
    if kind == "empty index":
        (path / INDEX_NAME).write_text(pack({}))
        return "it is foreign"
    raise AssertionError(kind)


@pytest.mark.parametrize("kind", ["missing shard", "torn shard", "missing index", "torn index", "changed index",
                                  "foreign index", "later format", "empty index"])
def test_damage_is_refused_with_the_reason(tmp_path, kind):
    path = save(tmp_path, 10)
    message = damage_of(kind, path)
    with pytest.raises(CheckpointError, match=message):
        load(path)


def test_every_flipped_byte_of_the_data_is_seen(tmp_path):
    path = save(tmp_path, 10, 1)
    file = path / "rank-0000.safetensors"
    original = file.read_bytes()
    header = 8 + int.from_bytes(original[:8], "little")
    assert len(original) - header == 4 * sum(torch.Size(shape).numel() for shape in SHAPES.values())
    for position in range(header, len(original), 13):
        file.write_bytes(original[:position] + bytes([original[position] ^ 4]) + original[position + 1:])
        with pytest.raises(CheckpointError, match=r"a shard is damaged: .* does not have its checksum"):
            load(path)
    file.write_bytes(original)
    assert load(path) == 10


def test_every_flipped_byte_of_the_index_is_seen(tmp_path):
    path = save(tmp_path, 10, 1)
    file = path / INDEX_NAME
    original = file.read_bytes()
    for position in range(0, len(original), 17):
        file.write_bytes(original[:position] + bytes([original[position] ^ 1]) + original[position + 1:])
        with pytest.raises(CheckpointError):
            load(path)


def test_a_part_that_nobody_wrote_is_missed(tmp_path):
    attempt = Attempt(tmp_path, 1, 1, "t")
    write_part(attempt, 0, [Entry("model/matrix", (7, 10), (0, 0), (7, 9), torch.zeros(7, 9))])
    path = commit(attempt, {}, {})
    with pytest.raises(CheckpointError, match=r"a part is missing: it holds no model/matrix at \[0, 9\]"):
        fill(path, read_index(path), [Entry("model/matrix", (7, 10), (0, 0), (7, 10), torch.zeros(7, 10))])
    with pytest.raises(CheckpointError, match="it holds no optimizer/exp_avg/x"):
        fill(path, read_index(path), [Entry("optimizer/exp_avg/x", (1,), (0,), (1,), torch.zeros(1))])
    with pytest.raises(CheckpointError, match=r"of another model: model/matrix is \[7, 10\] in it, and \[9, 10\]"):
        fill(path, read_index(path), [Entry("model/matrix", (9, 10), (0, 0), (7, 10), torch.zeros(7, 10))])


@functools.cache
def architecture(*overrides):
    small = ["+cluster=mixed", "model.num_layers=2", "model.hidden_size=16", "model.num_heads=2",
             "model.sequence_length=8"]
    return Architecture.from_config(compose([*small, *overrides]).model)


@pytest.mark.parametrize(("override", "message"), [
    ("model.hidden_size=32", r"model\.hidden_size is 16 in it and 32 here.*more differences"),
    ("model.num_layers=3", r"model\.num_layers is 2 in it and 3 here"),
    ("model.rotary_base=500000", r"model\.rotary_base is 10000\.0 in it and 500000\.0 here"),
    ("model.normalization_epsilon=1e-6", r"model\.normalization_epsilon is 1e-05 in it and 1e-06 here"),
    ("model.num_heads=4", r"model\.num_heads is 2 in it and 4 here"),
    ("model.tied_embeddings=false", r"model\.tied_embeddings is True in it and False here"),
    ("model.activation=swiglu", r"model\.activation is gelu in it and swiglu here"),
    ("model.sequence_length=16", r"embedding\.position\.weight is \[8, 16\] in it and \[16, 16\]"),
])
def test_a_checkpoint_of_another_model_is_refused(tmp_path, override, message):
    saved = architecture()
    attempt = Attempt(tmp_path, 1, 1, "t")
    write_part(attempt, 0, [Entry(f"model/{info.name}", info.shape, (0,) * len(info.shape), info.shape,
                                  torch.zeros(info.shape)) for info in saved.parameters()])
    index = read_index(commit(attempt, {"model": model_description(saved)}, {}))
    check_model(index, saved)
    with pytest.raises(CheckpointError, match="it is of another model.*" + message):
        check_model(index, architecture(override))


def checkpoint_of(tmp_path, recorded):
    attempt = Attempt(tmp_path, 1, 1, "t")
    write_part(attempt, 0, [Entry(f"model/{info.name}", info.shape, (0,) * len(info.shape), info.shape,
                                  torch.zeros(info.shape)) for info in architecture().parameters()])
    return read_index(commit(attempt, {"model": recorded}, {}))


def test_every_field_counts_that_changes_what_weights_mean(tmp_path):
    free = {"name", "family", "sequence_length", "max_positions", "initialization_std"}
    description = model_description(architecture())
    for number, (name, value) in enumerate(description.items()):
        other = f"{value}x" if isinstance(value, str | None) else not value if isinstance(value, bool) else value * 2
        index = checkpoint_of(tmp_path / str(number), description | {name: other})
        if name in free:
            check_model(index, architecture())
            continue
        with pytest.raises(CheckpointError, match=rf"another model: model\.{name} is {other} in it and {value} here"):
            check_model(index, architecture())


def test_a_checkpoint_from_before_a_setting_is_of_the_model_that_there_was_then(tmp_path):
    description = model_description(architecture())
    before = {name: description[name] for name in list(description)[:16]}
    index = checkpoint_of(tmp_path, before)
    check_model(index, architecture())
    with pytest.raises(CheckpointError, match=r"model\.attention_scale is .* in it and 0\.5 here"):
        check_model(index, architecture("model.attention_scale=0.5"))
    newer = checkpoint_of(tmp_path / "newer", description | {"router": "top2"})
    with pytest.raises(CheckpointError, match=r"newer version .* knows no model\.router"):
        check_model(newer, architecture())



def test_the_newest_come_first_and_older_ones_go(tmp_path):
    assert newest_first(tmp_path / "none") == []
    for step in (2, 10, 9, 1_000_000, 12):
        save(tmp_path, step)
    (tmp_path / "step-1").mkdir()
    (tmp_path / "notes").write_text("")
    assert [p.name for p in newest_first(tmp_path)] == ["step-1000000", "step-000012", "step-000010", "step-000009",
                                                        "step-000002"]
    assert remove_older(tmp_path, 12, 2, "t") == []
    assert [p.name for p in newest_first(tmp_path)] == ["step-1000000", "step-000012", "step-000010"], (
        "a later one was refused by the resume: it neither counts nor pushes out what was just written")
    assert remove_older(tmp_path, 1, 1, "t") == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes", "step-000010", "step-000012", "step-1",
                                                          "step-1000000"]


def test_a_step_done_again_takes_the_place_of_the_first(tmp_path):
    first = save(tmp_path, 5, 1)
    (first / "mark").write_text("")
    again = save(tmp_path, 5, 2, token="u")
    assert load(again) == 5
    assert not (again / "mark").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["step-000005"]


def test_what_ended_writers_left_is_cleared_away_or_saved(tmp_path):
    torn = partial_path(tmp_path, 3, "a")
    torn.mkdir()
    (torn / "rank-0000.safetensors").write_text("half")
    save(tmp_path, 4).rename(partial_path(tmp_path, 4, "a"))  # killed before the last rename
    save(tmp_path, 5).rename(tmp_path / ".step-000005.a.old")  # killed between the two renames of `publish`
    save(tmp_path, 6)
    shutil.copytree(tmp_path / "step-000006", tmp_path / ".step-000006.a.old")
    save(tmp_path, 1).rename(tmp_path / ".step-000001.a.removed")
    assert sorted(p.name for p in tidy(tmp_path)) == ["step-000004", "step-000005"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-000004", "step-000005", "step-000006"]
    assert [load(path) for path in newest_first(tmp_path)] == [6, 5, 4]
    assert tidy(tmp_path) == []
    assert tidy(tmp_path / "none") == []


def test_a_path_names_one_checkpoint_or_those_of_a_run(tmp_path):
    run = tmp_path / "runs" / "mixed" / "id"
    paths = [save(run / "checkpoints", step) for step in (1, 2)]
    assert candidates(run) == candidates(run / "checkpoints") == paths[::-1]
    assert candidates(paths[0]) == [paths[0]]
    best = paths[0].rename(tmp_path / "best")
    assert candidates(best) == [best]
    assert candidates(tmp_path / "runs") == candidates(tmp_path / "none") == []


def test_a_folder_that_is_saved_into_meanwhile_is_looked_at_again(tmp_path):
    looks = []

    def look():
        looks.append(newest_first(tmp_path))
        return looks[-1]

    save(tmp_path, 1)
    save(tmp_path, 2)
    assert [path.name for path in looking_again(look)] == ["step-000002", "step-000001"]
    assert len(looks) == 1, "nothing has gone: what was refused stays refused"
    names = []
    for path in looking_again(look):
        names.append(path.name)
        if path.name == "step-000001":  # as with train.keep_checkpoints=2
            save(tmp_path, 3)
            shutil.rmtree(path)
    assert names == ["step-000002", "step-000001", "step-000003"]
    endless = looking_again(lambda: [save(tmp_path, 10 + len(looks), token=f"t{len(looks)}")])
    for path in endless:
        looks.append([])
        shutil.rmtree(path)
        assert len(looks) < 20
    assert list(looking_again(list)) == []


def test_publishing_fails_whole(tmp_path):
    with pytest.raises(OSError, match="step-000001"):
        publish(partial_path(tmp_path, 1, "a"), 1, "a")
    assert not checkpoint_path(tmp_path, 1).exists()


def test_staged_copies_do_not_change_with_the_state():
    tensor = torch.arange(12.0).view(3, 4)
    entries = [Entry("a", (3, 4), (0, 0), (3, 2), tensor[:, :2]), Entry("b", (1,), (0,), (1,), tensor[0, :1], False)]
    staging = Staging()
    copies = staging.copy(entries)
    assert [copy.key for copy in copies] == ["a"], "what another rank writes is not copied"
    tensor.fill_(-1.0)
    assert copies[0].tensor.tolist() == [[0, 1], [4, 5], [8, 9]]
    assert copies[0].tensor.is_contiguous()
    assert staging.copy(entries)[0].tensor.data_ptr() == copies[0].tensor.data_ptr(), "buffers are used again"


def test_parts_of_all_ranks_are_needed(tmp_path, monkeypatch):
    monkeypatch.setattr("holmes_hpc.checkpoint.writing.PATIENCE_SECONDS", 0.0)
    attempt = Attempt(tmp_path, 1, 2, "t")
    write_part(attempt, 0, cut(2, (1, 1, 1), 1)[0])
    with pytest.raises(CheckpointError, match=r"rank 1 wrote .* rank 0 does not see it.*run\.folder"):
        commit(attempt, {}, {})
    assert newest_first(tmp_path) == []
