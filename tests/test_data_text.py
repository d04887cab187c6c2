"""Folders of text: what is read, tokenizers, the cache under several processes, the command, and mixtures of kinds."""

import errno
import fcntl
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy
import pytest

from holmes_hpc.config.compose import compose
from holmes_hpc.data import TokenFileWriter, cache, write
from holmes_hpc.data.token_file import SUFFIX
from holmes_hpc.data.tokenizer import load_tokenizer
from holmes_hpc.errors import ConfigurationError, DataError
from tests.data_sources import open_data, whole, write_megatron

LINES = "the quick brown fox jumps over the lazy dog\n"


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "corpus"
    for name, text in {"b.txt": "b" * 100, "a/z.txt": "z" * 50, "a/.hidden.txt": "?", ".git/x.txt": "?",
                       "c.md": "c" * 70, "ü.txt": "ü" * 50, "empty.txt": ""}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def open_text(root, **data):
    return open_data(name="text", path=str(root), cache=str(root.parent / "cache"), **data)


def cached(root):
    return sorted(path.name for path in (root.parent / "cache").iterdir() if path.name.endswith((SUFFIX, ".tmp")))


@pytest.fixture
def tokenizer_file(tmp_path):
    """A small tokenizer that cuts texts off and fills them up, if one lets it."""
    package = pytest.importorskip("tokenizers")
    tokenizer = package.Tokenizer(package.models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(vocab_size=270, special_tokens=["<|end|>"], show_progress=False,
                                          initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([LINES * 10], trainer)
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=1000)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_bytes_of_all_matching_files_in_the_order_of_their_paths(folder):
    expected = b"z" * 50 + b"b" * 100 + "ü".encode() * 50
    assert bytes(whole(open_text(folder))) == expected
    latin = open_text(folder, pattern="[a-z]*", validation_fraction=0.1)
    assert bytes(whole(latin)) == b"z" * 50 + b"b" * 100 + b"c" * 70
    (folder / "one.log").write_bytes(b"\xff\x01" * 200)
    assert bytes(whole(open_text(folder / "one.log"))) == b"\xff\x01" * 200


def test_tokens_are_made_once_for_each_content_and_tokenizer(folder, monkeypatch):
    made = []
    tokenise = cache.tokenise
    monkeypatch.setattr(cache, "tokenise", lambda *arguments: made.append(1) or tokenise(*arguments))
    first = open_text(folder).fingerprint()
    assert open_text(folder).fingerprint() == first
    assert len(made) == 1
    for path in folder.rglob("*.txt"):  # touched, the content is the same
        os.utime(path, (1, 1))
    moved = folder.rename(folder.with_name("moved"))
    assert open_text(moved).fingerprint() == first
    assert len(made) == 1
    (moved / "b.txt").write_text("B" * 100)
    assert open_text(moved).fingerprint() != first
    assert len(made) == 2
    assert len(cached(moved)) == 2


def test_a_damaged_cache_is_made_again_and_abandoned_tries_are_removed(folder):
    before = whole(open_text(folder))
    (name,) = cached(folder)
    path = folder.parent / "cache" / name
    path.write_bytes(path.read_bytes()[:-100])
    abandoned, young = (path.with_name(f".{name}.{word}.tmp") for word in ("old", "young"))
    abandoned.touch()
    young.touch()
    os.utime(abandoned, (1, 1))
    assert whole(open_text(folder)) == before
    assert cached(folder) == [young.name, name]


@pytest.mark.parametrize("what", ["not ASCII", "a word", "a pipe", "a folder", "without an end"])
def test_odd_notes_beside_the_cache_are_made_again(folder, what):
    """The record of the files' content, and what was said of them: a pipe held the start for ever."""
    before = whole(open_text(folder))
    for path in [*(folder.parent / "cache").glob("*.content"), *(folder.parent / "cache").glob("*.spelled")]:
        path.unlink()
        if what == "a pipe":
            os.mkfifo(path)
        elif what == "a folder" and path.suffix == ".spelled":
            path.mkdir()
        elif what == "without an end":
            path.symlink_to("/dev/zero")
        else:
            path.write_bytes(b"\xff\xfe" if what == "not ASCII" else b"x")
    assert whole(open_text(folder)) == before
    assert len(cached(folder)) == 1


def open_and_count(root, log, no_locks, barrier):
    def slow(*arguments):
        with open(log, "a") as file:
            file.write("made\n")
        time.sleep(0.3)
        tokenise(*arguments)

    def no_lock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    tokenise, cache.tokenise = cache.tokenise, slow
    if no_locks:
        cache.fcntl = type("NoLocks", (), {"flock": staticmethod(no_lock), "LOCK_EX": fcntl.LOCK_EX,
                                          "LOCK_NB": fcntl.LOCK_NB})
    barrier.wait()
    Path(log).with_name(f"found-{os.getpid()}").write_text(open_text(root).fingerprint())


@pytest.mark.parametrize("no_locks", [False, True])
def test_of_several_processes_one_makes_the_tokens_or_without_locks_each(folder, tmp_path, no_locks):
    context = multiprocessing.get_context("fork")
    barrier, log = context.Barrier(4), tmp_path / "log"
    processes = [context.Process(target=open_and_count, args=(folder, log, no_locks, barrier)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert len(log.read_text().splitlines()) == (4 if no_locks else 1)
    assert {path.read_text() for path in tmp_path.glob("found-*")} == {open_text(folder).fingerprint()}
    assert len(cached(folder)) == 1


def test_a_maker_that_dies_leaves_neither_a_lock_nor_half_a_file(folder):
    def die(*_):
        os._exit(9)

    def child():
        cache.tokenise = die
        open_text(folder)

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(60)
    assert process.exitcode == 9
    assert len(whole(open_text(folder))) == 250


def test_a_tokenizer_file_with_documents_ended(folder, tokenizer_file):
    package = pytest.importorskip("tokenizers")
    (folder / "b.txt").write_text(LINES * 50_000)  # more than two pieces
    data = open_text(folder, vocab_size=270, tokenizer=str(tokenizer_file), end_of_document="<|end|>")
    tokens = whole(data)
    end = package.Tokenizer.from_file(str(tokenizer_file)).token_to_id("<|end|>")
    assert tokens.count(end) == 4
    assert tokens[-1] == end
    text = package.Tokenizer.from_file(str(tokenizer_file)).decode(tokens, skip_special_tokens=False)
    assert text == "<|end|>".join(["z" * 50, LINES * 50_000, "", "ü" * 50, ""])
    assert len(tokens) < 1_500_000  # of 2.2 MB
    assert data.sources[0].vocab_size == 270
    without = open_text(folder, vocab_size=270, tokenizer=str(tokenizer_file))
    assert end not in whole(without)
    assert len(cached(folder)) == 2


def test_a_tokenizer_larger_than_any_is_refused_at_once(folder, tokenizer_file):
    os.truncate(tokenizer_file, 1 << 40)
    with pytest.raises(DataError, match=r"data\.tokenizer=.*cannot be read: it has 1,099,511,627,776 bytes"):
        open_text(folder, tokenizer=str(tokenizer_file))


def test_what_a_tokenizer_cannot_do_is_said(folder, tokenizer_file, tmp_path):
    text = {"tokenizer": str(tokenizer_file), "vocab_size": 270}
    with pytest.raises(DataError, match=r"tokenizer of 270 tokens, and model.vocab_size=269.*at least 270"):
        open_text(folder, **{**text, "vocab_size": 269})
    with pytest.raises(ConfigurationError, match=r"data.end_of_document=</s> is no token of data.tokenizer"):
        open_text(folder, end_of_document="</s>", **text)
    (folder / "bad.txt").write_bytes(b"fine\n" * 300_000 + b"\xff\n")
    with pytest.raises(DataError, match=r"bad.txt is not UTF-8 at byte 1500000"):
        open_text(folder, **text)
    assert cached(folder) == []
    wrong = tmp_path / "wrong.json"
    wrong.write_text("{}")
    for path, expected in ((wrong, "is no tokenizer"), (tmp_path / "none.json", "No such file")):
        with pytest.raises(DataError, match=expected):
            open_text(folder, tokenizer=str(path))


def test_a_missing_package_is_named_with_its_remedy(folder, tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigurationError, match="needs the package `tokenizers`.*pip install tokenizers"):
        open_text(folder, tokenizer=str(path))


@pytest.mark.parametrize(("change", "expected"), [
    ({"path": "/nowhere/corpus"}, "is no folder: the folder /nowhere does not exist on this node"),
    ({"pattern": "*.rst"}, "has 5 files, and none that matches data.pattern=*.rst"),
    ({"cache": "/proc/cache"}, "data.cache=/proc/cache cannot be written"),
    ({"sequence_length": 300}, "has 250 tokens, 238 of them for training"),
    ({"end_of_document": "</s>"}, "data.end_of_document=</s> needs data.tokenizer"),
])
def test_unusable_text_is_refused(folder, change, expected):
    options = {"name": "text", "path": str(folder), "cache": str(folder.parent / "cache"), **change}
    with pytest.raises((DataError, ConfigurationError)) as caught:
        open_data(**options)
    assert expected in str(caught.value)


def test_unreadable_text_is_refused(folder):
    (folder / "broken.txt").symlink_to("missing.txt")
    with pytest.raises(DataError, match=r"broken.txt cannot be read|cannot be read: No such file"):
        open_text(folder)


def test_a_full_disk_is_named(folder, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(TokenFileWriter, "write", full)
    with pytest.raises(DataError, match=r"data.cache=.*No space left on device.*has room"):
        open_text(folder)
    assert cached(folder) == []


def test_the_command_writes_a_file_that_is_trained_on(folder, tmp_path):
    output = tmp_path / "made.tokens"
    done = subprocess.run([sys.executable, "-m", "holmes_hpc.data.write", *map(str, (output, folder, folder / "c.md"))],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "320 tokens" in done.stdout
    data = open_data(name="tokens", path=str(output))
    assert bytes(whole(data)) == b"z" * 50 + b"b" * 100 + "ü".encode() * 50 + b"c" * 70
    assert data.sources[0].tokenizer == load_tokenizer(None).identity


def test_the_command_says_what_is_wrong(folder, tmp_path, capsys):
    assert write.main([str(tmp_path / "no" / "a.tokens"), str(folder)]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert write.main([str(tmp_path / "a.tokens"), str(tmp_path / "none")]) == 1
    assert "is no folder" in capsys.readouterr().err
    assert write.main([str(tmp_path / "a.tokens"), str(folder), "--end-of-document", "x"]) == 2
    assert "--tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "a.tokens").exists()


def mixture_of_all_kinds(tmp_path, folder):
    with TokenFileWriter(tmp_path / "a.tokens", 256) as writer:
        writer.write(numpy.full(3000, 1))
    numpy.full(3000, 2, dtype="<u2").tofile(tmp_path / "flat.bin")
    write_megatron(tmp_path / "m", [[3] * 3000], 4, "i")
    (folder / "b.txt").write_bytes(b"\4" * 3000)
    return [
        {"name": "tokens", "path": str(tmp_path / "a.tokens"), "weight": 4},
        {"name": "tokens", "path": str(tmp_path / "flat.bin"), "weight": 3.0},
        {"name": "megatron", "path": str(tmp_path / "m"), "weight": 0.5, "validation_fraction": 0.5},
        {"name": "text", "path": str(folder), "pattern": "b.txt", "weight": 1.5},
        {"name": "python_docs", "weight": 1},
    ]


@pytest.mark.parametrize("order", ["random", "epoch"])
def test_a_mixture_of_every_kind_has_its_weights(folder, tmp_path, order):
    data = open_data(name="mixture", sources=mixture_of_all_kinds(tmp_path, folder), order=order,
                     cache=str(tmp_path / "cache"))
    assert [float(weight) for weight in data.weights] == [0.4, 0.3, 0.05, 0.15, 0.1]
    assert [len(source.validation) for source in data.sources[:4]] == [150, 150, 1500, 150]
    first = Counter(data.train_batch(1, 1, 0, 2000, 2000)[0][:, 0].clamp(max=5).tolist())
    for value, weight in zip((1, 2, 3, 4), (0.4, 0.3, 0.05, 0.15), strict=True):
        spread = 5 if order == "epoch" else 5 * (2000 * weight * (1 - weight)) ** 0.5
        assert abs(first[value] - 2000 * weight) <= spread


def test_messages_name_the_source_and_unlike_tokenizers_are_refused(folder, tmp_path):
    sources = mixture_of_all_kinds(tmp_path, folder)
    (tmp_path / "flat.bin").write_bytes(b"123")
    with pytest.raises(DataError, match=r"data.sources.1.path=.*data.sources.1.dtype=uint16"):
        open_data(name="mixture", sources=sources[:2])
    with TokenFileWriter(tmp_path / "a.tokens", 256, b"another one     ") as writer:
        writer.write(numpy.full(3000, 1))
    with pytest.raises(DataError, match=r"data.sources.0.path=.* data.sources.1.name=python_docs .* unlike tokenizers"):
        open_data(name="mixture", sources=[sources[0], sources[4]])


@pytest.mark.parametrize(("overrides", "expected"), [
    (["data=mixture"], "data=mixture needs data.sources"),
    (["data=mixture", "data.path=x", "data.sources=[{name: python_docs}]"], "every source has its own path"),
    (["data.sources=[{name: python_docs}]"], "only a mixture has sources"),
    (["data=mixture", "data.sources=[{name: tokens}]"], "data.sources.0.path, the file of tokens"),
    (["data=mixture", "data.sources=[{weight: 1}]"], "data.sources.0.name"),
    (["data=mixture", "data.sources=[{name: mixture}]"], "data.sources.0.name=mixture: expected one of python_docs"),
    (["data=mixture", "data.sources=[{name: python_docs, weight: 0}]"], "data.sources.0.weight=0"),
    (["data=mixture", "data.sources=[{name: python_docs, wieght: 1}]"], "wieght"),
    (["data=mixture", "data.sources=[{name: python_docs}]", "model.vocab_size=200"], "data.sources.0.name=python_docs"),
    (["data=text", "data.path=x", "data.end_of_document=y"], "data.end_of_document=y needs data.tokenizer"),
    (["data=text"], "data=text needs data.path, the folder of text"),
    (["data=megatron"], "data=megatron needs data.path"),
    (["data.order=shuffled"], "one of random, epoch"),
])
def test_contradicting_settings_are_refused_before_a_run_starts(overrides, expected):
    with pytest.raises(ConfigurationError) as caught:
        compose(["+cluster=mixed", *overrides])
    assert expected in str(caught.value)


def test_the_cache_lies_beside_the_runs():
    config = compose(["+cluster=mixed", "data=text", "data.path=x", "run.folder=/some/runs"])
    assert config.data.cache == "/some/runs/token_cache"
    mixed = compose(["+cluster=mixed", "data=mixture", "data.sources=[{name: python_docs, weight: 3}]"])
    assert json.loads(json.dumps(mixed.data.sources[0].weight)) == 3
