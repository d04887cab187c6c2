"""Token files with a header, Megatron's pairs, and what is said of malformed ones."""

import errno
import os
import struct
import zlib
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_hpc.data import TokenFileWriter, tokens
from holmes_hpc.data.settings import SourceSettings
from holmes_hpc.data.token_file import read_token_file
from holmes_hpc.errors import DataError
from tests.data_sources import open_data, whole, write_megatron
from tests.fuzzing import examples


def read(path):
    return read_token_file(SourceSettings("data", "tokens", str(path)))


def write(path, documents, vocab_size=256, tokenizer=None):
    with TokenFileWriter(path, vocab_size, tokenizer) as writer:
        for document in documents:
            writer.write(numpy.asarray(document, dtype=numpy.int64))
            writer.end_document()
    return path


@examples(40)
@given(st.data())
def test_what_is_written_is_read(tmp_path_factory, data):
    vocab_size = data.draw(st.sampled_from([1, 2, 255, 256, 257, 65_536, 65_537, 2**32]))
    documents = data.draw(st.lists(st.lists(st.integers(0, vocab_size - 1), max_size=20), max_size=5))
    path = write(tmp_path_factory.mktemp("x") / "a.tokens", documents, vocab_size, b"t" * 16)
    found = read(path)
    assert numpy.asarray(found.array).tolist() == [token for document in documents for token in document]
    assert (found.vocab_size, found.tokenizer) == (vocab_size, b"t" * 16)
    ends = numpy.cumsum([len(document) for document in documents]).tolist()
    assert (found.documents is None and not documents) or numpy.asarray(found.documents).tolist() == ends
    assert found.array.dtype.itemsize == (1 if vocab_size <= 256 else 2 if vocab_size <= 65_536 else 4)
    assert [file.name for file in path.parent.iterdir()] == ["a.tokens"]


def test_the_layout_is_the_documented_one(tmp_path):
    content = write(tmp_path / "a", [[1, 2, 3], [300]], 50_000, bytes(range(16))).read_bytes()
    fields = struct.unpack("<8sIIQQQ16sII", content[:64])
    assert fields[:8] == (b"HOLMTOK\0", 1, 2, 50_000, 4, 2, bytes(range(16)), 0)
    assert fields[8] == zlib.crc32(content[:60])
    assert struct.unpack("<4H2Q", content[64:]) == (1, 2, 3, 300, 3, 4)


def test_a_file_with_a_header_needs_no_type_and_no_name(tmp_path):
    line = [number % 1000 for number in range(2000)]
    data = open_data(vocab_size=1000, name="tokens", path=str(write(tmp_path / "any.bin", [line], 1000)),
                     dtype="uint8", validation_fraction=0.1)
    assert whole(data) == line
    assert len(data.sources[0].validation) == 200


def test_a_failed_write_leaves_what_was_there(tmp_path):
    path = write(tmp_path / "a.tokens", [[1]])
    before = path.read_bytes()
    with pytest.raises(ValueError, match="tokens 1 to 256 in a vocabulary of 256"):
        write(path, [[1, 256]])
    with pytest.raises(ValueError, match="0 tokens"):
        TokenFileWriter(path, 0)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def with_bytes(content, at, new):
    return content[:at] + new + content[at + len(new) :]


GOOD = 64 + 200 + 8


@pytest.mark.parametrize(("change", "expected"), [
    (lambda content: b"", "is empty (0 bytes)"),
    (lambda content: with_bytes(content, 2, b"?"), "does not begin with the magic"),
    (lambda content: content[:40], "40 bytes, and the header of a token file alone has 64: it is cut short"),
    (lambda content: with_bytes(content, 8, b"\3"), "version 3, and this holmes_hpc reads 1 and 2"),
    (lambda content: with_bytes(content, 12, b"\2"), "damaged header"),
    (lambda content: with_bytes(content, 25, b"\7"), "damaged header"),
    (lambda content: with_bytes(content, 63, b"\0\0"), "damaged header"),
    (lambda content: content[:-1], f"{GOOD - 1} bytes, and its header says {GOOD}"),
    (lambda content: content[:150], "cut short"),
    (lambda content: content + b"\0", "too long"),
    (lambda content: with_bytes(content, GOOD - 8, b"\1"), "last document ends after 1"),
])
def test_damaged_token_files_are_refused(tmp_path, change, expected):
    path = write(tmp_path / "a.tokens", [[7] * 200])
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError) as caught:
        open_data(name="tokens", path=str(path))
    assert expected in str(caught.value)
    assert f"data.path={path}" in str(caught.value)


@examples(60)
@given(st.integers(0, 63), st.integers(1, 255))
def test_no_flipped_byte_of_a_header_goes_unseen(tmp_path_factory, at, change):
    path = write(tmp_path_factory.mktemp("x") / "a.tokens", [[7] * 200])
    content = path.read_bytes()
    path.write_bytes(with_bytes(content, at, bytes([content[at] ^ change])))
    with pytest.raises(DataError):
        read(path)


def test_a_larger_vocabulary_and_a_token_beyond_it_are_refused(tmp_path):
    path = str(write(tmp_path / "a.tokens", [[7] * 2000], 300))
    with pytest.raises(DataError, match="vocabulary of 300 tokens, and model.vocab_size=256 has fewer"):
        open_data(name="tokens", path=path)
    prefix = write_megatron(tmp_path / "m", [[7] * 1000, [256] * 50, [7] * 1000])
    with pytest.raises(DataError, match=r"m holds token 256, and model.vocab_size=256"):
        open_data(name="megatron", path=str(prefix))
    with pytest.raises(DataError, match="8 tokens, 0 of them for validation|8 tokens, 8 of them for training"):
        open_data(name="megatron", path=str(write_megatron(tmp_path / "short", [[1] * 8])))


def test_an_unreadable_file_is_refused(tmp_path, monkeypatch):
    def refused(*arguments, **options):
        raise OSError(errno.EACCES, "Permission denied")

    path = str(write(tmp_path / "a.tokens", [[7] * 2000]))
    monkeypatch.setattr(tokens.numpy, "memmap", refused)
    with pytest.raises(DataError, match="cannot be read: Permission denied. Make it readable on every node"):
        open_data(name="tokens", path=path)
    monkeypatch.undo()
    monkeypatch.setattr(tokens, "open_regular", refused)
    with pytest.raises(DataError, match="cannot be read: Permission denied"):
        open_data(name="tokens", path=path)


@pytest.mark.parametrize(("code", "letter"), [(1, "B"), (2, "b"), (3, "h"), (4, "i"), (5, "q"), (8, "H")])
def test_every_type_of_megatron_is_read(tmp_path, code, letter):
    sequences = [[(number * 7 + token) % 120 for token in range(30 + number)] for number in range(20)]
    prefix = write_megatron(tmp_path / "corpus.v1_text", sequences, code, letter, borders=[0, 3, 3, 20])
    expected = [token for sequence in sequences for token in sequence]
    for path in (prefix, f"{prefix}.bin", f"{prefix}.idx"):
        data = open_data(name="megatron", path=str(path))
        assert whole(data) == expected
    inputs, targets = data.train_batch(1, 1, 0, 4, 4)
    assert inputs.shape == (4, 8)
    assert inputs[:, 1:].equal(targets[:, :-1])


def test_text_alone_may_have_modes_and_borders_may_be_missing(tmp_path):
    prefix = write_megatron(tmp_path / "m", [[1, 2] * 50, [3] * 100], borders=[], modes=[0, 0])
    assert whole(open_data(name="megatron", path=str(prefix))) == [1, 2] * 50 + [3] * 100


@examples(40)
@given(st.lists(st.lists(st.integers(0, 255), max_size=30), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_sequences_in_any_order_are_read_in_that_of_the_index(tmp_path_factory, sequences, random):
    sequences = [*sequences, list(range(200))]
    order = list(range(len(sequences)))
    random.shuffle(order)
    prefix = write_megatron(tmp_path_factory.mktemp("x") / "m", sequences, 4, "i", order=order)
    data = open_data(name="megatron", path=str(prefix), validation_fraction=0.2)
    expected = [token for sequence in sequences for token in sequence]
    assert whole(data) == expected
    border = len(data.sources[0].training)
    begin = random.randrange(border)
    assert numpy.asarray(data.sources[0].training[begin : begin + 50]).tolist() == expected[begin:border][:50]
    first = data.train_batch(0, 1, 0, 1, 1)[0][0].tolist()
    assert any(first == expected[at : at + 8] for at in range(border))


def damaged(change):
    def change_index(prefix):
        index = Path(f"{prefix}.idx")
        index.write_bytes(change(index.read_bytes()))
    return change_index


@pytest.mark.parametrize(("change", "expected"), [
    (lambda prefix: Path(f"{prefix}.bin").unlink(), "m.bin is no file"),
    (lambda prefix: Path(f"{prefix}.idx").unlink(), "m.idx is no file"),
    (lambda prefix: Path(f"{prefix}.bin").write_bytes(b"\0" * 399), "has 399 bytes, and"),
    (lambda prefix: Path(f"{prefix}.bin").write_bytes(b"\0" * 402), "do not belong together"),
    (lambda prefix: Path(f"{prefix}.bin").write_bytes(b""), "is empty (0 bytes)"),
    (damaged(lambda index: b""), "is empty (0 bytes)"),
    (damaged(lambda index: b"x" + index[1:]), "does not begin with"),
    (damaged(lambda index: b"TNTIDX\0\0" + index), "older kind TNTIDX"),
    (damaged(lambda index: index[:20]), "20 bytes, less than the 34 of its header"),
    (damaged(lambda index: with_bytes(index, 9, b"\2")), "has version 2"),
    (damaged(lambda index: with_bytes(index, 17, b"\6")), "floating-point"),
    (damaged(lambda index: with_bytes(index, 17, b"\7")), "floating-point"),
    (damaged(lambda index: with_bytes(index, 17, b"\0")), "type code 0"),
    (damaged(lambda index: with_bytes(index, 17, b"\4")), "describes"),
    (damaged(lambda index: index[:-1]), "cut short or damaged"),
    (damaged(lambda index: with_bytes(index, 18, b"\xff" * 7)), "cut short or damaged"),
    (damaged(lambda index: with_bytes(index, 34, struct.pack("<i", -5))), "negative length"),
    (damaged(lambda index: with_bytes(index, 42, struct.pack("<q", 3))), "impossible byte"),
    (damaged(lambda index: with_bytes(index, 50, struct.pack("<q", 10**9))), "do not belong together"),
    (damaged(lambda index: with_bytes(index, 58, struct.pack("<q", 9))), "document borders outside"),
    (damaged(lambda index: index + b"\0\1"), "multimodal"),
])
def test_malformed_pairs_are_refused(tmp_path, change, expected):
    prefix = write_megatron(tmp_path / "m", [[1] * 100, [2] * 100])
    change(prefix)
    with pytest.raises(DataError) as caught:
        open_data(name="megatron", path=str(prefix))
    assert expected in str(caught.value)
    assert f"data.path={prefix}" in str(caught.value)


def test_a_negative_token_is_refused(tmp_path):
    prefix = write_megatron(tmp_path / "m", [[1] * 100, [-1] * 100], 4, "i")
    with pytest.raises(DataError, match="negative token -1"):
        open_data(name="megatron", path=str(prefix))


def test_a_pair_of_megatron_is_not_taken_for_a_flat_file(tmp_path):
    prefix = write_megatron(tmp_path / "m", [[1] * 1000], 4, "i")
    for path in (f"{prefix}.bin", f"{prefix}.idx"):
        with pytest.raises(DataError, match="data.name=megatron"):
            open_data(name="tokens", path=path)


@pytest.mark.parametrize("kind", ["flat", "npy", "header", "megatron", "megatron in another order"])
def test_a_file_that_becomes_shorter_under_a_run_is_named_and_a_replaced_one_is_not(tmp_path, kind):
    array = (numpy.arange(20000) % 250).astype("<u2")
    overrides, path = {"name": "tokens"}, tmp_path / "data.bin"
    if kind == "flat":
        array.tofile(path)
    elif kind == "npy":
        numpy.save(path := tmp_path / "data.npy", array)
    elif kind == "header":
        write(path := tmp_path / "data.tokens", [array.tolist()])
    else:
        overrides = {"name": "megatron"}
        write_megatron(tmp_path / "data", [array[:9000].tolist(), array[9000:].tolist()],
                       **({"order": [1, 0]} if "order" in kind else {}))
    dataset = open_data(**overrides, path=str(path))
    batch = dataset.train_batch(1, 1, 0, 4, 4)
    content = path.read_bytes()
    other = tmp_path / "other"
    other.write_bytes(content[:100])
    kept = tmp_path / "kept"
    path.rename(kept)
    other.rename(path)
    assert (dataset.train_batch(1, 1, 0, 4, 4)[0] == batch[0]).all(), "the old file is mapped still"
    os.truncate(kept, len(content) // 2)
    for read in (lambda: dataset.train_batch(1, 2, 0, 4, 4), lambda: dataset.validation_batch(0, 4)):
        with pytest.raises(DataError, match="has become shorter under the run"):
            read()
