"""Files of rows, tokenizers of models, and `holmes tokenize`: many files, several processes, and going on."""

from __future__ import annotations

import gzip
import json
import sys
import types

import numpy
import pytest

from holmes_hpc import tokenize
from holmes_hpc.data import parts
from holmes_hpc.data.formats import Stretch, rows
from holmes_hpc.data.settings import SourceSettings
from holmes_hpc.data.token_file import read_token_file
from holmes_hpc.errors import ConfigurationError, DataError
from tests.chat_models import conversation, model_folder, write_rows
from tests.data_sources import open_data, whole

TEXTS = ["First page.", "Second\npage, with <|im_end|> in it.", "", "Third."]


def settings(path, **changes) -> SourceSettings:
    return SourceSettings("data", changes.pop("kind", "text"), str(path), **changes)


def written(path, texts=TEXTS):
    return write_rows(path, [{"id": number, "text": text} for number, text in enumerate(texts)])


def test_each_row_of_jsonl_is_a_document(tmp_path):
    model = model_folder(tmp_path / "model", around=True)
    written(tmp_path / "a.jsonl")
    data = open_data(vocab_size=320, sequence_length=4, name="text", path=str(tmp_path),
                     pattern="*.jsonl", tokenizer=str(model), validation_fraction=0.3,
                     cache=str(tmp_path / "cache"), packing="documents")
    line = whole(data)
    assert line.count(256) == 4, "the model's token stands before every document, once"
    assert line[0] == 256
    ends = numpy.asarray(data.sources[0].documents).tolist()
    assert [end - begin for begin, end in zip([0, *ends], ends, strict=False)] == [1 + len(text) for text in TEXTS]
    bare = open_data(vocab_size=320, sequence_length=4, name="text", path=str(tmp_path),
                     pattern="*.jsonl", tokenizer=str(model), validation_fraction=0.3,
                     cache=str(tmp_path / "cache"), add_special_tokens=False)
    assert 256 not in whole(bare)
    both = open_data(vocab_size=320, sequence_length=4, name="text", path=str(tmp_path),
                     pattern="*.jsonl", tokenizer=str(model), validation_fraction=0.3,
                     cache=str(tmp_path / "cache"), end_of_document="<|im_end|>")
    assert whole(both).count(258) == 4


def test_a_packed_file_and_a_plain_one_hold_the_same_rows(tmp_path):
    plain = written(tmp_path / "a.jsonl")
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert [row.value for row in rows(settings(packed), packed)] == [row.value for row in rows(settings(plain), plain)]
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(DataError, match="cut short"):
        list(rows(settings(packed), packed))


@pytest.mark.parametrize("size", [1, 7, 40, 10_000])
def test_stretches_of_a_file_have_every_row_once(tmp_path, size):
    path = written(tmp_path / "a.jsonl", ["x" * (number % 23) for number in range(60)])
    total, found = path.stat().st_size, []
    for begin in range(0, total, size):
        found += [row.value["id"] for row in rows(settings(path), path, Stretch(begin, min(begin + size, total)))]
    assert found == list(range(60))


@pytest.mark.parametrize(("line", "fact"), [
    ('{"txt": "a"}', r"has nothing \(its fields: txt\) in data\.text_field=text"),
    ('{"text": 3}', r"has no text in data\.text_field=text"),
    ('{"text": "\\ud800"}', "has half a character"),
    ("text", "is no JSON"),
])
def test_bad_rows_are_named_with_file_and_line(tmp_path, line, fact):
    path = write_rows(tmp_path / "a.jsonl", ['{"text": "a"}', line])
    with pytest.raises(DataError, match=rf"a\.jsonl, line 2, {fact}"):
        open_data(name="text", path=str(path), cache=str(tmp_path / "cache"))


def test_parquet_needs_its_package_and_names_it(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigurationError, match="pip install pyarrow"):
        list(rows(settings(path), path))


class Batch:
    def __init__(self, values):
        self.values = values

    def to_pylist(self):
        return self.values


def test_parquet_is_read_in_batches_by_its_column(tmp_path, monkeypatch):
    """The package's own interface as far as it is used; a look with the package itself is in docs/data.md."""
    class ParquetFile:
        schema_arrow = types.SimpleNamespace(names=["text", "id"])
        metadata = types.SimpleNamespace(num_rows=2)

        def __init__(self, path):
            if path.read_bytes() != b"PAR1":
                raise OSError("not a parquet file.")  # as theirs is, without a number of the system

        def iter_batches(self, count, columns):
            assert columns == ["text"]
            yield Batch([{"text": "a"}])
            yield Batch([{"text": 3}])

    module = types.ModuleType("pyarrow.parquet")
    module.ParquetFile = ParquetFile
    monkeypatch.setitem(sys.modules, "pyarrow", types.ModuleType("pyarrow"))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", module)
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    assert [row.value["text"] for row in rows(settings(path), path)] == ["a", 3]
    with pytest.raises(DataError, match=r"a\.parquet, row 2, has no text"):
        open_data(name="text", path=str(path), cache=str(tmp_path / "cache"))
    with pytest.raises(DataError, match=r"has no column messages; it has text, id\. Set data\.messages_field"):
        list(rows(settings(path, kind="chat"), path))
    path.write_bytes(b"PAR2")
    with pytest.raises(DataError, match=r"no Parquet file, or damaged: not a parquet file\. Copy it again"):
        list(rows(settings(path), path))


def corpus(folder, count=5):
    folder.mkdir()
    for number in range(count):
        written(folder / f"{number}.jsonl", [f"{number} {each}" * 5 for each in range(20)])
    (folder / "plain.txt").write_text("Plain text.")
    return folder


def test_tokenize_makes_one_file_of_many_by_several_processes(tmp_path, capsys, monkeypatch):
    folder, model = corpus(tmp_path / "corpus"), model_folder(tmp_path / "model", around=True)
    monkeypatch.setattr(parts, "_PART_BYTES", 700)
    command = [str(folder), "--pattern", "*", "--tokenizer", str(model)]
    assert tokenize.main([str(tmp_path / "a.tokens"), *command, "--processes", "1"]) == 0
    assert "101 documents; use it with data=tokens data.path=" in capsys.readouterr().out
    assert tokenize.main([str(tmp_path / "b.tokens"), *command, "--processes", "2"]) == 0
    first, second = ((tmp_path / name).read_bytes() for name in ("a.tokens", "b.tokens"))
    assert first == second
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tokens", "b.tokens", "corpus", "model"]
    direct = open_data(vocab_size=320, name="text", path=str(folder), pattern="*", tokenizer=str(model),
                       cache=str(tmp_path / "cache"))
    assert whole(open_data(vocab_size=320, name="tokens", path=str(tmp_path / "a.tokens"))) == whole(direct)


def test_tokenize_goes_on_where_it_ended(tmp_path, capsys, monkeypatch):
    folder = corpus(tmp_path / "corpus")
    broken = folder / "4.jsonl"
    good = broken.read_text()
    broken.write_text(good + '{"text": 1}\n')
    command = [str(tmp_path / "a.tokens"), str(folder), "--pattern", "*.jsonl", "--processes", "1"]
    assert tokenize.main(command) == 2
    said = capsys.readouterr().err
    assert "4.jsonl, line 21, has no text" in said
    assert f"what was made is kept in {tmp_path / '.a.tokens.parts'}: the same command goes on" in said
    assert not (tmp_path / "a.tokens").exists()
    broken.write_text(good)
    made, make = [], parts._make
    monkeypatch.setattr(parts, "_make", lambda part: made.append(part.file.name) or make(part))
    assert tokenize.main(command) == 0
    assert made == ["4.jsonl"]
    assert not (tmp_path / ".a.tokens.parts").exists()
    assert "goes on where it ended" in capsys.readouterr().err
    assert len(read_token_file(settings(tmp_path / "a.tokens")).documents) == 100


def test_tokenize_makes_conversations_that_count_the_assistant(tmp_path, capsys):
    model = model_folder(tmp_path / "model")
    write_rows(tmp_path / "chat.jsonl", [*[conversation("Hi", "Hello")] * 5, conversation("Alone")])
    assert tokenize.main([str(tmp_path / "a.tokens"), str(tmp_path / "chat.jsonl"), "--chat", "--tokenizer", str(model),
                          "--processes", "1"]) == 0
    assert "1 conversation without a turn of the assistant was left out" in capsys.readouterr().err
    tokens = read_token_file(settings(tmp_path / "a.tokens"))
    assert int(numpy.asarray(tokens.counted).sum()) == 5 * (len("Hello") + 1)
    assert len(tokens.documents) == 5


def test_tokenize_writes_no_file_of_nothing_and_says_why(tmp_path, capsys):
    model = model_folder(tmp_path / "model")
    write_rows(tmp_path / "chat.jsonl", [conversation("Alone"), conversation("Alone too")])
    assert tokenize.main([str(tmp_path / "a.tokens"), str(tmp_path / "chat.jsonl"), "--chat", "--tokenizer", str(model),
                          "--processes", "1"]) == 2
    assert ("no document is in these files; 2 conversations without a turn of the assistant were left out"
            in capsys.readouterr().err)
    assert [path.name for path in tmp_path.glob("*a.tokens*")] == []


@pytest.mark.parametrize(("words", "fact"), [
    (["--chat"], "--chat needs --tokenizer"),
    (["--processes", "0"], "at least 1"),
    (["--tokenizer", "missing"], "cannot be read"),
    (["--pattern", "*.none"], "none that matches --pattern=*.none"),
])
def test_tokenize_refuses_in_one_message(tmp_path, capsys, words, fact):
    folder = corpus(tmp_path / "corpus", 1)
    assert tokenize.main([str(tmp_path / "a.tokens"), str(folder), *words]) == 2
    assert fact in capsys.readouterr().err
    assert not (tmp_path / ".a.tokens.parts").exists()
    assert json.loads((folder / "0.jsonl").read_text().splitlines()[0])
