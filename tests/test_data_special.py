"""Text that spells special tokens is text, unless it is asked to be more; and it is said."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from holmes_hpc.data.tokenizer import load_tokenizer
from holmes_hpc.errors import ConfigurationError
from tests.data_sources import open_data, whole

package = pytest.importorskip("tokenizers")

PAGE = "A page about <|endoftext|> says <s>20</s>.\nIt ends.\n"


def byte_level(added: list[Any]) -> Any:
    """Return a tokenizer of bytes with added tokens; strings are special ones."""
    alphabet = {symbol: number for number, symbol in enumerate(sorted(package.pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = package.Tokenizer(package.models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = package.decoders.ByteLevel()
    for token in added:
        tokenizer.add_special_tokens([token]) if isinstance(token, str) else tokenizer.add_tokens([token])
    return tokenizer


def unigram() -> Any:
    """Return a tokenizer whose model itself has special tokens among its pieces."""
    letters = sorted(set(PAGE) | set("<|endoftext|>/s"))
    pieces = [("<unk>", 0.0), ("</s>", 0.0), ("<|endoftext|>", 0.0), *((letter, -9.0) for letter in letters)]
    tokenizer = package.Tokenizer(package.models.Unigram(pieces, unk_id=0))
    tokenizer.add_special_tokens(["<unk>", "</s>", "<|endoftext|>"])
    return tokenizer


def saved(folder: Path, tokenizer: Any) -> str:
    tokenizer.save(str(folder / "tokenizer.json"))
    return str(folder / "tokenizer.json")


ORDINARY = package.AddedToken("<|endoftext|>", special=False)
KINDS = {
    "bytes": lambda: byte_level(["<|endoftext|>", "<s>", "</s>"]),
    "ordinary end": lambda: byte_level([ORDINARY, "<s>", "</s>"]),
    "stripping": lambda: byte_level([package.AddedToken("<|endoftext|>", special=True, lstrip=True, rstrip=True)]),
    "unigram": unigram,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", [None, "<|endoftext|>"])
def test_a_text_that_spells_special_tokens_has_none(tmp_path: Path, kind: str, end: str | None) -> None:
    raw = KINDS[kind]()
    loaded = load_tokenizer(saved(tmp_path, raw), end)
    special = {raw.token_to_id(name) for name in ("<|endoftext|>", "<s>", "</s>")}
    if kind == "ordinary end" and end is None:
        special.remove(raw.token_to_id("<|endoftext|>"))  # a token as any other, then
    ids = loaded.encode(PAGE.encode()).tolist()
    assert special.isdisjoint(ids)
    assert raw.decode(ids, skip_special_tokens=False).replace(" ", "") == PAGE.replace(" ", "")
    assert loaded.end_of_document == (end and raw.token_to_id(end))


def test_what_was_spelled_is_counted() -> None:
    loaded = load_tokenizer_of(KINDS["bytes"]())
    for _ in range(3):
        loaded.encode(PAGE.encode())
    assert loaded.spelled == {"<|endoftext|>": 3, "<s>": 3, "</s>": 3}
    loaded.encode(b"<|endoftext| > and < s>")
    assert sum(loaded.spelled.values()) == 9


def load_tokenizer_of(raw: Any, **options: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return load_tokenizer(saved(Path(folder), raw), **options)


def test_control_tokens_are_made_where_they_are_asked_for() -> None:
    raw = KINDS["bytes"]()
    ids = load_tokenizer_of(raw, control=True).encode(PAGE.encode()).tolist()
    assert ids == raw.encode(PAGE, add_special_tokens=False).ids
    assert [ids.count(raw.token_to_id(name)) for name in ("<|endoftext|>", "<s>", "</s>")] == [1, 1, 1]


def test_unknown_characters_are_still_unknown() -> None:
    loaded = load_tokenizer_of(unigram())
    assert loaded.encode("aé".encode()).tolist()[-1] == 0
    assert 0 in loaded.encode("é<unk>".encode()).tolist()


def test_the_page_trains_as_text_and_a_line_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(PAGE * 20)
    raw = KINDS["bytes"]()
    data = {"name": "text", "path": str(folder), "cache": str(tmp_path / "cache"), "vocab_size": 300,
            "tokenizer": saved(tmp_path, raw), "end_of_document": "<|endoftext|>"}
    end = raw.token_to_id("<|endoftext|>")
    for _ in range(2):  # made, and read from the cache
        opened = open_data(**data)
        assert whole(opened).count(end) == 2  # one after each file, and none inside
        (remark,) = opened.remarks(doubts=True)
        assert "<|endoftext|> 40 times" in remark and "data.special_tokens=control" in remark
    opened = open_data(special_tokens="control", **data)
    assert whole(opened).count(end) == 42  # the cache keeps the two apart
    assert "became those tokens; data.special_tokens=text" in opened.remarks(doubts=False)[0]
    (folder / "a.txt").write_text("nothing of the kind " * 20)
    (folder / "b.txt").unlink()
    assert open_data(**data).remarks(doubts=True) == []


def test_the_writer_says_it_too(tmp_path: Path) -> None:
    (tmp_path / "page.txt").write_text(PAGE)
    command = [sys.executable, "-m", "holmes_hpc.data.write", str(tmp_path / "out.tokens"), str(tmp_path / "page.txt"),
               "--tokenizer", saved(tmp_path, KINDS["bytes"]())]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "<|endoftext|> 1 time," in done.stderr and "--special-tokens=control" in done.stderr
    plain = (tmp_path / "out.tokens").read_bytes()
    done = subprocess.run([*command, "--special-tokens", "control"], capture_output=True, text=True, check=True)
    assert "became those tokens" in done.stderr and (tmp_path / "out.tokens").read_bytes() != plain


def test_an_old_package_is_refused_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        def token_to_id(self, _: str) -> int:
            return 1

    class Package:
        Tokenizer = type("Tokenizer", (), {"from_str": staticmethod(lambda _: Old())})

    path = saved(tmp_path, KINDS["bytes"]())
    monkeypatch.setattr("holmes_hpc.data.tokenizer.importlib.import_module", lambda _: Package)
    with pytest.raises(ConfigurationError, match="from 0.19"):
        load_tokenizer(path)
