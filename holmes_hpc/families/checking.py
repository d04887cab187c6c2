"""Checks the weights of a published model before anything is started: names, shapes, types, numbers."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from holmes_hpc.families.family import Family, Sizes, Source
from holmes_hpc.families.folder import ModelFolder, Stored
from holmes_hpc.foreign import ForeignError, read_json, whole_number

TYPES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Types of weights that are read, with their bytes. What is wider than a float32 is read as one."""
_EXPONENTS = {"F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}
"""The bits of the exponent: all of them are set in what is infinite or no number."""
_LARGEST_FLOAT32 = 3.4028235677973366e38
"""What is not below this rounds to infinity in a float32: half a step above its largest number."""
TIED = "embedding.token.weight"
_HEAD = "head.output.weight"
_BLOCK_BYTES = 16 * 2**20
_MOST_NAMED = 3


def stored_names(family: Family, stored: Iterable[str]) -> str:
    """Return what is to be left off the family's names: its prefix, where files of a bare model lack it, or nothing."""
    return "" if any(name.startswith(family.prefix) for name in stored) else family.prefix


def sources_of(family: Family, sizes: Sizes, parameters: Mapping[str, tuple[int, ...]], stored: Mapping[str, Stored]
               ) -> dict[str, Source]:
    """Return where each of our parameters lies, by the names that these files have."""
    from dataclasses import replace

    missing = stored_names(family, stored)
    found = {name: family.source(sizes, name) for name in parameters}
    return {name: replace(source, name=source.name.removeprefix(missing)) for name, source in found.items()}


def check_weights(folder: ModelFolder, family: Family, sizes: Sizes, parameters: Mapping[str, tuple[int, ...]],
                  vocab_size: int) -> dict[str, Stored]:
    """Check that the folder has exactly the tensors of the model, and a tokenizer that fits; return them by name.

    Only headers are read. Raises ConfigurationError.
    """
    stored = folder.tensors()
    sources = sources_of(family, sizes, parameters, stored)
    expected = {source.name: source.shape(parameters[name]) for name, source in sources.items()}
    head = family.names["head.output"] + ".weight"
    if _HEAD not in parameters and head in stored:
        expected[head] = parameters[TIED]
    missing = [name for name in expected if name not in stored]
    more = [name for name in stored if name not in expected and not name.endswith(family.buffers)]
    other = [f"{name} is {list(stored[name].shape)}, and config.json makes it {list(shape)}"
             for name, shape in expected.items() if name in stored and stored[name].shape != shape]
    types = [f"{name} is of type {stored[name].dtype}" for name in expected
             if name in stored and stored[name].dtype not in TYPES]
    for found, fact, remedy in (
            (missing, "it lacks the tensors {}", _remedy(missing, stored)),
            (other, "its tensors have other shapes: {}", "Take the config.json that belongs to these weights."),
            (more, "it has tensors that a model of this family has not: {}",
             "It is another model than config.json says, or has parts that are not known."),
            (types, "{}; weights are read that are " + ", ".join(TYPES),
             "Take the model that is not quantised.")):
        if found:
            rest = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
            raise folder.wrong(fact.format(", ".join(found[:_MOST_NAMED]) + rest), remedy)
    _check_tokenizer(folder, vocab_size)
    return stored


def _remedy(missing: Sequence[str], stored: Iterable[str]) -> str:
    """Return what to do about tensors that are missing: they may only have another name, as of a model in a wrapper."""
    other = next((name for name in stored if missing and name.endswith(f".{missing[0]}")), None)
    if other is not None:
        return f"It has {other}: save the model itself, without what wraps it."
    return "Copy all files of the model, with the config.json that is theirs."


def check_numbers(folder: ModelFolder, family: Family, stored: Mapping[str, Stored], *, tied: bool) -> None:
    """Read all weights once: all must be finite, and a head that is stored beside a tied table must equal it.

    Raises ConfigurationError.
    """
    missing = stored_names(family, stored)
    table = (family.names["embedding.token"] + ".weight").removeprefix(missing)
    head = family.names["head.output"] + ".weight"
    pair: dict[str, tuple[Path, int, int]] = {}
    for name, path in folder.weight_files().items():
        own = {key: place for key, place in stored.items() if place.file == name and place.dtype in TYPES}
        for key, (begin, end) in _offsets(path, own).items():
            if tied and key in (table, head):
                pair[key] = (path, begin, end)
            if not all(_is_finite(block, own[key].dtype) for block in _blocks(path, begin, end)):
                raise folder.wrong(f"{key} in {name} has values that are not finite"
                                   + (" as float32" if own[key].dtype == "F64" else ""),
                                   "The file is damaged, or the model was broken when it was saved; take another.")
    if tied and len(pair) == 2 and (stored[table].dtype != stored[head].dtype or any(
            one != other for one, other in zip(_blocks(*pair[table]), _blocks(*pair[head]), strict=False))):
        raise folder.wrong(f"config.json says that {head} is {table}, and their values differ",
                           "Set tie_word_embeddings to false there, if the model was trained with a head of its own.")


def _is_finite(block: bytes, dtype: str) -> bool:
    """Say whether all numbers of a block are finite, in the type in which they are read."""
    import numpy

    if dtype == "F64":  # comparing to no number is false
        return bool((numpy.abs(numpy.frombuffer(block, dtype="<f8")) < _LARGEST_FLOAT32).all())
    bits = _EXPONENTS[dtype]
    return not bool(((numpy.frombuffer(block, dtype="<u4" if dtype == "F32" else "<u2") & bits) == bits).any())


def _check_tokenizer(folder: ModelFolder, vocab_size: int) -> None:
    path = folder.file("tokenizer.json")
    if path is None:
        return
    try:
        found = read_json(path)
    except ForeignError as error:
        raise folder.wrong(str(error), "Copy tokenizer.json again.") from error
    if not isinstance(found, dict):
        raise folder.wrong("tokenizer.json holds no object", "Copy tokenizer.json again.")
    model, added = found.get("model"), found.get("added_tokens")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else list(range(len(vocabulary or ())))
    ids += [each.get("id") for each in (added if isinstance(added, list) else ()) if isinstance(each, dict)]
    largest = max((number for each in ids if (number := whole_number(each)) is not None), default=-1)
    if largest >= vocab_size:
        raise folder.wrong(f"tokenizer.json has the token {largest}, and the model's table has {vocab_size:,} rows "
                           "(vocab_size)", "Take the tokenizer that belongs to this model.")


def _offsets(path: Path, wanted: Mapping[str, Stored]) -> dict[str, tuple[int, int]]:
    """Return where the wanted tensors begin and end in a file whose header is known to be sound."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    places = {key: header[key]["data_offsets"] for key in wanted}
    return {key: (8 + length + begin, 8 + length + end) for key, (begin, end) in places.items()}


def _blocks(path: Path, begin: int, end: int) -> Iterable[bytes]:
    """Yield the bytes of a part of a file, mapped a block at a time, so that little memory is held."""
    with path.open("rb") as file:
        while begin < end:
            first = begin // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            stop = min(end, begin + _BLOCK_BYTES)
            with mmap.mmap(file.fileno(), stop - first, offset=first, access=mmap.ACCESS_READ) as view:
                yield view[begin - first:stop - first]
            begin = stop
