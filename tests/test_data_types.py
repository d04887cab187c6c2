"""Files whose tokens have another type than is said: refused before the start, with the type that fits."""

from __future__ import annotations

import logging
import struct
import zlib
from pathlib import Path

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from holmes_hpc.architecture import Architecture
from holmes_hpc.config.schema import Data, Model
from holmes_hpc.data.before import check_data_files
from holmes_hpc.data.token_file import HEADER_BYTES, TokenFileWriter
from holmes_hpc.data.token_types import likely_type
from holmes_hpc.errors import ConfigurationError, DataError
from tests.data_sources import open_data, whole, write_megatron

GPT2, LLAMA3 = 50_257, 128_256
PROSE = b"It was the best of times, it was the worst of times.\n" * 1000


def ids(vocab_size: int, count: int = 40_000, seed: int = 1) -> numpy.ndarray:
    """Return tokens as text has them: the numbers of common ones are small, and all numbers occur."""
    generator = numpy.random.default_rng(seed)
    return (vocab_size ** generator.random(count)).astype(numpy.int64) - 1


def check(vocab_size: int = GPT2, **data: object) -> None:
    config = OmegaConf.merge(OmegaConf.structured(Data), {"cache": "unused", "name": "tokens", **data})
    model = OmegaConf.merge(OmegaConf.structured(Model), {"vocab_size": vocab_size, "sequence_length": 8})
    check_data_files(config, Architecture.from_config(model))


def written(folder: Path, tokens: numpy.ndarray, code: str) -> str:
    path = folder / "corpus.bin"
    tokens.astype(code).tofile(path)
    return str(path)


@pytest.mark.parametrize(("code", "vocab_size", "declared"), [
    ("<u1", 256, "uint8"), ("<u2", GPT2, "uint16"), ("<u2", 5, "uint16"), ("<u2", 256, "uint16"),
    ("<u4", GPT2, "uint32"), ("<i4", LLAMA3, "int32"), ("<u4", LLAMA3, "uint32"), ("<i8", LLAMA3, "int64"),
    ("<i8", 5, "int64"), ("<u2", 32_000, "uint16"),
])
def test_tokens_of_the_declared_type_pass(tmp_path: Path, code: str, vocab_size: int, declared: str) -> None:
    tokens = ids(vocab_size)
    path = written(tmp_path, tokens, code)
    check(vocab_size, path=path, dtype=declared)
    assert whole(open_data(8, vocab_size, name="tokens", path=path, dtype=declared)) == tokens.tolist()


@pytest.mark.parametrize(("code", "vocab_size", "declared", "fitting"), [
    ("<u4", GPT2, "uint16", "uint32"),  # every second token a zero: it trains, with a better loss
    ("<u4", LLAMA3, "uint16", "uint32"), ("<u4", 5, "uint16", "uint32"), ("<u4", 256, "uint8", "uint32"),
    ("<i8", GPT2, "uint16", "int64"), ("<i8", LLAMA3, "uint32", "int64"), ("<i8", 256, "uint8", "int64"),
    ("<u2", GPT2, "uint8", "uint16"), ("<u2", 256, "uint8", "uint16"), ("<u2", GPT2, "uint32", "uint16"),
    ("<u2", GPT2, "int64", "uint16"), ("<u4", GPT2, "int64", "uint32"),
    (">u2", GPT2, "uint16", "big-endian uint16"), (">u2", 32_000, "uint16", "big-endian uint16"),
    (">u4", GPT2, "uint32", "big-endian uint32"), (">u4", GPT2, "uint16", "big-endian uint32"),
    (">u4", 256, "uint8", "big-endian uint32"), (">i8", GPT2, "uint16", "big-endian int64"),
    (">i8", LLAMA3, "uint32", "big-endian int64"), (">u2", 256, "uint8", "big-endian uint16"),
    ("<f4", GPT2, "uint16", "float32"), ("<f4", 256, "uint8", "float32"), ("<f4", LLAMA3, "uint32", "float32"),
    ("<f8", GPT2, "uint16", "float64"), ("<f8", GPT2, "int64", "float64"), ("<f2", 256, "uint8", "float16"),
    ("<f2", 2048, "uint16", "float16"),
])
@pytest.mark.parametrize("model", ["its own", "a wider one"])
def test_tokens_of_another_type_are_refused_with_the_one_that_fits(
    tmp_path: Path, code: str, vocab_size: int, declared: str, fitting: str, model: str
) -> None:
    path = written(tmp_path, ids(vocab_size), code)
    with pytest.raises(ConfigurationError, match=f"look like {fitting}"):
        check(vocab_size if model == "its own" else max(vocab_size, GPT2), path=path, dtype=declared)
    with pytest.raises(DataError, match=f"look like {fitting}"):
        open_data(8, vocab_size, name="tokens", path=path, dtype=declared)


def test_bytes_read_as_sixteen_bits_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, numpy.minimum(ids(200), 130), "<u1")  # no text: it has control characters
    with pytest.raises(ConfigurationError, match=r"look like uint8.*data\.dtype=uint8"):
        check(path=path)
    check(path=path, dtype="uint8")


@pytest.mark.parametrize("make", [
    lambda: numpy.arange(20_000) % 250, lambda: numpy.arange(50_000), lambda: numpy.full(9000, 7),
    lambda: numpy.random.default_rng(0).integers(0, GPT2, 30_000),
    lambda: numpy.random.default_rng(0).integers(0, 2**16, 30_000),
    lambda: numpy.tile(numpy.arange(1, 4), 5000), lambda: numpy.full(9000, 15_360),
    lambda: numpy.concatenate([ids(GPT2), numpy.zeros(60_000)]),
], ids=["counting", "all", "constant", "noise", "wide noise", "period", "a half one", "padded"])
def test_numbers_that_are_no_text_are_not_taken_for_another_type(tmp_path: Path, make: object) -> None:
    check(2**16, path=written(tmp_path, make(), "<u2"))  # type: ignore[operator]


@given(st.lists(st.integers(256, 2**16 - 1), max_size=400).map(lambda tokens: tokens[: len(tokens) // 4 * 4]))
def test_a_few_tokens_are_not_judged_by_how_often_they_occur(tokens: list[int]) -> None:
    sample = numpy.array(tokens, dtype="<u2").view(numpy.uint8)
    assert likely_type(sample, numpy.dtype("<u2"), 2**16) is None


def test_text_given_for_tokens_is_refused_unless_a_token_is_a_byte(tmp_path: Path) -> None:
    path = tmp_path / "corpus.bin"
    path.write_bytes(PROSE)
    for declared in ("uint16", "uint32", "int64"):
        with pytest.raises(ConfigurationError, match=r"is text.*data\.name=text"):
            check(path=str(path), dtype=declared)
    check(path=str(path), dtype="uint8")


@pytest.mark.parametrize(("begin", "what"), [
    (b"PK\x03\x04", "zip"), (b"\x1f\x8b\x08", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"PAR1", "Parquet"),
    (b"\x89HDF\r\n\x1a\n", "HDF5"), (struct.pack("<ii", 20240520, 1), "llm.c"),
    (struct.pack("<ii", 20240801, 7), r"llm\.c.*tail -c \+1025"),
    (b"\x89PNG\r\n\x1a\n", "is a picture"), (b"%PDF-1.7\n", "is a PDF"), (b"SQLite format 3\0", "is a database"),
    (b"MMIDIDX\0\0", "is an index of Megatron"), (bytes(257) + b"ustar\x0000", "is a tar archive"),
    (struct.pack("<Q", 64) + b'{"x":{"dtype":"U16"', "is weights"), (b"\x7fELF\2", "is a program"),
    (b"7z\xbc\xaf\x27\x1c", "is a 7z"), (b"\x04\x22\x4d\x18", "lz4"),
])
def test_files_with_a_format_of_their_own_are_not_trained_on(tmp_path: Path, begin: bytes, what: str) -> None:
    path = tmp_path / "corpus.bin"
    path.write_bytes(begin + bytes(1024 - len(begin)) + ids(GPT2).astype("<u2").tobytes())
    with pytest.raises(ConfigurationError, match=what):
        check(path=str(path))


@pytest.mark.parametrize("code", ["<u1", "<u2", ">u2", "<u4", "<i4", "<i8", ">i8"])
@pytest.mark.parametrize("name", ["corpus.npy", "corpus.bin"])
def test_numpy_arrays_are_read_by_their_header(tmp_path: Path, code: str, name: str) -> None:
    tokens = ids(256 if code == "<u1" else GPT2, 1000)
    with (tmp_path / name).open("wb") as file:
        numpy.save(file, tokens.astype(code))
    assert whole(open_data(8, GPT2, name="tokens", path=str(tmp_path / name))) == tokens.tolist()
    with (tmp_path / name).open("wb") as file:
        numpy.save(file, tokens.astype(code).reshape(20, 50))
    assert whole(open_data(8, GPT2, name="tokens", path=str(tmp_path / name))) == tokens.tolist()


@pytest.mark.parametrize(("array", "message"), [
    (numpy.ones(100), "array of float64"), (numpy.array(["a"] * 100), "whole numbers"), (numpy.array(7), "in 0 dims"),
    (numpy.asfortranarray(numpy.ones((30, 30), dtype=int)), "Fortran"), (numpy.ones(100, dtype=bool), "array of bool"),
    (numpy.full(200, -100), "negative token -100"),
])
def test_numpy_arrays_of_anything_else_are_refused(tmp_path: Path, array: numpy.ndarray, message: str) -> None:
    numpy.save(tmp_path / "corpus.npy", array)
    with pytest.raises(ConfigurationError, match=message):
        check(path=str(tmp_path / "corpus.npy"))


@pytest.mark.parametrize("damage", [
    lambda whole: whole[:-100], lambda whole: whole[:9], lambda whole: b"", lambda whole: b"no array" * 50,
    lambda whole: whole.replace(b"'shape': (1000,)", b"'shape': ((((()"), lambda whole: whole.replace(b"<i8", b"|O8"),
], ids=["short", "no header", "empty", "none", "nested", "objects"])
def test_damaged_numpy_arrays_are_refused(tmp_path: Path, damage: object) -> None:
    numpy.save(tmp_path / "corpus.npy", ids(GPT2, 1000))
    path = tmp_path / "corpus.npy"
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    message = "damaged numpy array" if path.stat().st_size else r"empty \(0 bytes\)"
    with pytest.raises(ConfigurationError, match=message):
        check(path=str(path))


@pytest.mark.parametrize(("vocab_size", "wrapped"), [(LLAMA3, True), (70_000, True), (2**16, False), (65_664, False)])
def test_tokens_that_were_cut_to_sixteen_bits_are_refused(tmp_path: Path, vocab_size: int, wrapped: bool) -> None:
    cut = (ids(vocab_size) if wrapped else ids(2**16)) % 2**16
    path, pair = written(tmp_path, cut, "<u2"), write_megatron(tmp_path / "pair", [cut.tolist()])
    numpy.save(tmp_path / "cut.npy", cut.astype("<u2"))
    for data in ({"path": path}, {"name": "megatron", "path": str(pair)}, {"path": str(tmp_path / "cut.npy")}):
        if wrapped:
            with pytest.raises(ConfigurationError, match=rf"up to 65\d\d\d, the end.*model\.vocab_size={vocab_size}"):
                check(vocab_size, **data)
        else:
            check(vocab_size, **data)


def test_a_type_that_cannot_hold_the_vocabulary_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path, ids(32_000), "<u2")
    with caplog.at_level(logging.WARNING):
        check(GPT2, path=path)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        check(LLAMA3, path=path)
    assert "ends at 65535, and model.vocab_size=128256: tokens 65536 and above never occur" in caplog.text


@pytest.mark.parametrize(("begin", "end", "where"), [(0.5, 1, "tokens in a row are all 0, to the very end."),
                                                     (0.2, 0.4, "tokens in a row are all 0. ")])
def test_a_file_that_was_not_written_to_its_end_is_said(begin: float, end: float, where: str, tmp_path: Path,
                                                        caplog: pytest.LogCaptureFixture) -> None:
    tokens = ids(32_000, 400_000)
    tokens[int(begin * len(tokens)):int(end * len(tokens))] = 0
    with caplog.at_level(logging.WARNING):
        check(GPT2, path=written(tmp_path, tokens, "<u2"))
    assert where in caplog.text and "whose writer was stopped" in caplog.text


@pytest.mark.parametrize(("code", "letter"), [(8, "i"), (8, "q"), (4, "q"), (1, "H")])
def test_an_index_of_megatron_that_states_a_smaller_type_is_refused(tmp_path: Path, code: int, letter: str) -> None:
    tokens = ids(250 if code == 1 else GPT2, 20_000)
    real = write_megatron(tmp_path / "real", [tokens.tolist()], {"H": 8, "i": 4, "q": 5}[letter], letter)
    check(name="megatron", path=str(real))
    width, said = struct.calcsize(f"<{letter}"), {8: 2, 4: 4, 1: 1}[code]
    # The same sequences, and sequences so much longer that the sizes agree.
    for count, message in ((len(tokens), f"tokens of {width} bytes"), (len(tokens) * width // said, "looks like")):
        index = bytearray(real.with_suffix(".idx").read_bytes())
        index[17] = code
        index[34:38] = struct.pack("<i", count)
        real.with_suffix(".idx").write_bytes(index)
        with pytest.raises(ConfigurationError, match=message):
            check(name="megatron", path=str(real))


def test_a_header_whose_type_cannot_hold_its_vocabulary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tokens"
    with TokenFileWriter(path, 40_000) as writer:
        writer.write(ids(40_000))
        with pytest.raises(TypeError, match="float64"):
            writer.write(numpy.ones(3))
    check(path=str(path))
    forged = bytearray(path.read_bytes())
    forged[16:24] = struct.pack("<Q", 100_000)
    forged[60:64] = struct.pack("<I", zlib.crc32(bytes(forged[:60])))
    path.write_bytes(forged)
    assert len(forged) == HEADER_BYTES + 80_000
    with pytest.raises(ConfigurationError, match="vocabulary of 100000 tokens, and its tokens of 2 bytes"):
        check(LLAMA3, path=str(path))


def test_what_looks_wrong_and_is_right_can_be_written_with_a_header(tmp_path: Path) -> None:
    odd = ids(GPT2)
    odd[1::2] = 0
    with pytest.raises(ConfigurationError, match="TokenFileWriter, whose header says the type"):
        check(path=written(tmp_path, odd, "<u2"))
    with TokenFileWriter(tmp_path / "odd.tokens", GPT2) as writer:
        writer.write(odd)
    check(path=str(tmp_path / "odd.tokens"))
