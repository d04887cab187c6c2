"""What goes along with an exported model: the files of its tokenizer, and the numbers of its special tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holmes_hpc.config.places import named_in
from holmes_hpc.data.tokenizer import load_tokenizer
from holmes_hpc.errors import HolmesError
from holmes_hpc.families.folder import CONFIGURATION, TEXTS
from holmes_hpc.foreign import ForeignError, read_yaml
from holmes_hpc.paths import at_home, is_file, is_folder

_TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class Texts:
    """Files by the name they get, the numbers of special tokens as `config.json` has them, and why there is no file."""

    files: Mapping[str, Path]
    numbers: Mapping[str, int | None] = field(default_factory=dict)
    missing: str = ""


def texts_of(run: Path, kept: Path) -> Texts:
    """Return what goes along with the model of a run; `kept` is the folder of what its model came with, if any.

    A model that came with a configuration says its own special tokens. One of our own has those that its data name, and
    null for others: where nothing is said, readers take the numbers of the family's first model.
    """
    came = is_file(kept / CONFIGURATION)
    files = {name: kept / name for name in TEXTS if name != CONFIGURATION and is_file(kept / name)}
    if any("token" in name for name in files):
        return Texts(files, {} if came else _numbers(None, None))
    try:
        config = read_yaml(run / "config.yaml")
    except ForeignError as error:
        return Texts(files, {} if came else _numbers(None, None), f"the run's settings cannot be read: {error}")
    data = config.get("data") if isinstance(config, dict) else None
    data = data if isinstance(data, dict) else {}
    name = named_in(data, "tokenizer")
    if name is None:
        return Texts(files, {} if came else _numbers(None, None), "the run has none")
    numbers = {} if came else _numbers(name, named_in(data, "end_of_document"))
    place = at_home(name)
    found = {each: place / each for each in TEXTS if each not in (CONFIGURATION, "generation_config.json")
             and is_file(place / each)} if is_folder(place) else {_TOKENIZER: place} if is_file(place) else {}
    if not found:
        return Texts(files, numbers, f"data.tokenizer={name} of the run is not there: copy it into the folder as "
                                     f"{_TOKENIZER}")
    return Texts({**files, **found}, numbers)


def _numbers(tokenizer: str | None, end_of_document: str | None) -> dict[str, int | None]:
    """Return the numbers of the tokens that begin and end a document, null where there is none or it is not known."""
    if tokenizer is None:
        return _named(None, None)
    try:
        loaded = load_tokenizer(tokenizer, end_of_document)
    except HolmesError:  # the package or the file is missing: the weights are exported all the same
        return _named(None, None)
    return _named(next(iter(loaded.before.tolist()), None), next(iter(loaded.after.tolist()[-1:]), None))


def _named(first: int | None, last: int | None) -> dict[str, int | None]:
    return {"bos_token_id": first, "eos_token_id": last, "pad_token_id": None}
