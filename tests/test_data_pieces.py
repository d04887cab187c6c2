"""Text without line ends: it is tokenised in pieces of bounded size, as if it were whole."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holmes_hpc.data import text
from holmes_hpc.data.settings import SourceSettings
from holmes_hpc.data.token_file import TokenFileWriter, read_token_file
from holmes_hpc.data.tokenizer import ByteTokenizer, FileTokenizer, Tokenizer
from holmes_hpc.errors import DataError
from tests.fuzzing import examples

PIECE = 64
END = "<|end of text|>"


def source(path: Path) -> SourceSettings:
    return SourceSettings("data", "text", str(path))


def pieces(path: Path, tokenizer: Tokenizer) -> list[bytes]:
    return list(text._pieces(source(path), path, tokenizer))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_PIECE_BYTES", PIECE)


@pytest.fixture(scope="module")
def package() -> Any:
    return pytest.importorskip("tokenizers")


def byte_pairs(package: Any, *, control: bool = False) -> FileTokenizer:
    made = package.Tokenizer(package.models.BPE(unk_token=None))
    made.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.train_from_iterator(["the quick brown fox jumps over the lazy dog " * 10], package.trainers.BpeTrainer(
        vocab_size=300, special_tokens=[END], show_progress=False,
        initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet()))
    return FileTokenizer(made, b"", None, control=control)


def test_a_line_of_any_length_takes_a_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "line.txt"
    with path.open("wb") as file:
        for _ in range(48):
            file.write(b"x" * 2**20)
    tracemalloc.start()
    longest = max(len(piece) for piece in text._pieces(source(path), path, ByteTokenizer()))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert longest <= 2 * 2**20
    assert most < 10 * 2**20


@examples(100)
@given(lines=st.lists(st.text(alphabet="ab \tä語🦊\r", max_size=400), max_size=4))
def test_pieces_are_the_file_in_bounded_parts_between_characters(
    lines: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("x") / "text.txt"
    path.write_bytes("\n".join(lines).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "_PIECE_BYTES", PIECE)
        found = pieces(path, ByteTokenizer())
    assert b"".join(found) == path.read_bytes()
    assert all(0 < len(piece) <= 2 * PIECE for piece in found)
    assert "".join(piece.decode() for piece in found) == "\n".join(lines), "every piece is UTF-8 by itself"


@pytest.mark.parametrize("before", [0, 1, PIECE - 1, 3 * PIECE])
def test_null_bytes_are_refused_wherever_they_are(small: None, tmp_path: Path, before: int) -> None:
    path = tmp_path / "torn.txt"
    path.write_bytes(b"ab\n" * before + bytes(5) + b"c" * 20)
    with pytest.raises(DataError, match=f"has a null byte at {3 * before} "):
        pieces(path, ByteTokenizer())


def test_short_lines_stay_whole(small: None, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("a line of twenty-one\n" * 20)
    found = pieces(path, ByteTokenizer())
    assert len(found) == 5
    assert all(piece.endswith(b"\n") for piece in found)


def written(package: Any, tmp_path: Path, words: str, *, control: bool = False) -> tuple[list[int], FileTokenizer]:
    """Return the tokens that a file of the words becomes, and the tokenizer that made them."""
    path, made = tmp_path / "text.txt", byte_pairs(package, control=control)
    path.write_text(words)
    with TokenFileWriter(tmp_path / "out.tokens", made.vocab_size) as writer:
        text.tokenise(source(path), [path], text.TextRecipe(made), writer)
    return numpy.asarray(read_token_file(source(tmp_path / "out.tokens")).array).tolist(), made


@pytest.mark.parametrize("words", ["the quick brown fox jumps over the lazy dog " * 30,
                                   "the quick  brown\tfox   jumps \t over " * 40])
def test_tokens_of_a_cut_line_are_those_of_the_whole(small: None, package: Any, tmp_path: Path, words: str) -> None:
    found, _ = written(package, tmp_path, words)
    assert found == byte_pairs(package).encode(words.encode()).tolist()


@pytest.mark.parametrize("before", range(0, 24, 2))
def test_special_tokens_are_never_cut(small: None, package: Any, tmp_path: Path, before: int) -> None:
    words = "x" * before + ("dog" + END) * 30
    tokens, made = written(package, tmp_path, words, control=True)
    assert tokens.count(made.encode(END.encode())[0]) == 30
    _, plain = written(package, tmp_path, words)
    assert plain.spelled[END] == 30
