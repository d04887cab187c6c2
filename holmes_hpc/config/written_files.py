"""Text of configuration files stays as it is written: an account `no` is no truth value, and `3.10` is not 3.1.

YAML gives every plain word a type of its own before anybody knows which setting it is for. So words are left as text
here, and the schema turns those of numbers and truth values into such; only where a setting takes values of any type is
YAML's own rule applied afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydra
import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from holmes_hpc.errors import ConfigurationError

_TEXT, _PREFIX = "tag:yaml.org,2002:str", "tag:yaml.org,2002:"
_TYPED = frozenset(f"{_PREFIX}{name}" for name in ("int", "float", "bool", "timestamp"))
_WHOLE = re.compile(r"[-+]?(0|[1-9][0-9_]*)")
_NUMBER = re.compile(r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_TRUTH = {"true": True, "false": False}
_MOST_VALUES = 100_000
_HYDRA_FOLDER = Path(hydra.__file__).parent
# Paths of the settings that take values of any type. Options of sbatch are text, but for the flags.
_OF_ANY_TYPE = ("parallel.warmup_extra", "parallel.layer_split", "parallel.pipelines")


_RESOLVE, _CONSTRUCT = yaml.SafeLoader.resolve, yaml.SafeLoader.construct_document
"""YAML's own, before anything is changed."""


@contextmanager
def text_as_written() -> Iterator[None]:
    """Let YAML keep plain words of configuration files as text while this is open, but for `null`.

    OmegaConf makes its loader from yaml.SafeLoader whenever it reads a file, and inherits what is changed here. Files
    that configure Hydra itself are left alone.
    """
    before, before_document = yaml.SafeLoader.resolve, yaml.SafeLoader.construct_document

    def resolve(loader: Any, kind: Any, value: Any, implicit: Any) -> Any:
        tag = before(loader, kind, value, implicit)
        return _TEXT if tag in _TYPED and implicit[0] and not _is_hydras(str(loader.name)) else tag

    def construct_document(loader: Any, node: yaml.Node) -> Any:
        check_size(str(loader.name), node)
        return before_document(loader, node)

    yaml.SafeLoader.resolve = resolve  # type: ignore[method-assign]
    yaml.SafeLoader.construct_document = construct_document  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        yaml.SafeLoader.resolve = before  # type: ignore[method-assign]
        yaml.SafeLoader.construct_document = before_document  # type: ignore[method-assign]


@contextmanager
def text_as_yaml_reads_it() -> Iterator[None]:
    """Let YAML read words as it does by itself while this is open, inside `text_as_written` too.

    What is done while Hydra composes and runs jobs reads files that were written by programs, where `true` is true.
    """
    before, before_document = yaml.SafeLoader.resolve, yaml.SafeLoader.construct_document
    yaml.SafeLoader.resolve = _RESOLVE  # type: ignore[method-assign]
    yaml.SafeLoader.construct_document = _CONSTRUCT  # type: ignore[method-assign]
    try:
        yield
    finally:
        yaml.SafeLoader.resolve = before  # type: ignore[method-assign]
        yaml.SafeLoader.construct_document = before_document  # type: ignore[method-assign]


def check_size(name: str, node: yaml.Node) -> None:
    """Refuse a file whose aliases stand for more values than any configuration has.

    Raises ConfigurationError, and RecursionError where an anchor stands within itself.

    Nine aliases of nine aliases, nine times over, are a few lines of text and a billion values.
    """
    sizes: dict[int, int] = {}

    def size(inner: yaml.Node, above: frozenset[int]) -> int:
        if id(inner) in above:
            raise RecursionError("an anchor that stands within itself")
        if id(inner) not in sizes:
            children = [child for pair in inner.value for child in pair] if isinstance(inner, yaml.MappingNode) else (
                inner.value if isinstance(inner, yaml.SequenceNode) else [])
            sizes[id(inner)] = 1 + sum(size(child, above | {id(inner)}) for child in children)
        return sizes[id(inner)]

    values = size(node, frozenset())
    if values > _MOST_VALUES:
        raise ConfigurationError(f"{name}: with its aliases the file has {values:,} values, and at most "
                                 f"{_MOST_VALUES:,} are read. Write out what is meant.")


def give_types(config: DictConfig) -> None:
    """Turn text into numbers and truth values in those settings that take values of any type."""
    for path in _OF_ANY_TYPE:
        _retype(config, path, numbers=True)
    _retype(config, "launch.sbatch", numbers=False)
    partitions = OmegaConf.select(config, "cluster.partitions", throw_on_missing=False)
    for label in partitions if isinstance(partitions, DictConfig) else ():
        partition = partitions._get_node(label)
        if isinstance(partition, DictConfig):
            _retype(partition, "sbatch", numbers=False)


def _retype(config: DictConfig, path: str, *, numbers: bool) -> None:
    try:
        value = OmegaConf.select(config, path)
    except OmegaConfBaseException:
        return  # an interpolation that leads nowhere: the check of values says so
    changed = _typed(OmegaConf.to_container(value) if OmegaConf.is_config(value) else value, numbers=numbers)
    if value is not None and changed != value:
        OmegaConf.update(config, path, changed, merge=False)


def _typed(value: Any, *, numbers: bool) -> Any:
    if isinstance(value, dict):
        return {key: _typed(each, numbers=numbers) for key, each in value.items()}
    if isinstance(value, list):
        return [_typed(each, numbers=numbers) for each in value]
    if not isinstance(value, str):
        return value
    if value in _TRUTH:
        return _TRUTH[value]
    if not numbers:
        return value
    return int(value) if _WHOLE.fullmatch(value) else float(value) if _NUMBER.fullmatch(value) else value


def _is_hydras(name: str) -> bool:
    """Whether a file configures Hydra itself: one of its own, or FOLDER/hydra/GROUP/NAME.yaml."""
    path = Path(name)
    return path.parts[-3:-2] == ("hydra",) or _HYDRA_FOLDER in path.parents
