"""A model whole in one process, from the checkpoint of a run or the folder of a published model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from holmes_hpc.architecture import Architecture, ParameterInfo
from holmes_hpc.checkpoint.entries import Entry
from holmes_hpc.checkpoint.index import Index, read_index
from holmes_hpc.checkpoint.model import MODEL_PREFIX, check_model, resolved
from holmes_hpc.checkpoint.naming import checkpoint_path, newest_first
from holmes_hpc.checkpoint.reading import fill
from holmes_hpc.config.compose import compose
from holmes_hpc.config.pretrained import OWN, is_of_bytes
from holmes_hpc.errors import CheckpointError, ConfigurationError
from holmes_hpc.families import ModelFolder, family_named
from holmes_hpc.families.checking import check_weights
from holmes_hpc.foreign import read_yaml, whole_number
from holmes_hpc.model import StageModule, TensorShare, build_stage
from holmes_hpc.model.pretrained import PretrainedWeights
from holmes_hpc.paths import at_home, is_file, is_folder
from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.circumstances import no_weights
from holmes_hpc.runs.find import find_run, refuse_two

_ONE = ("+cluster=uniform", "cluster.nodes=1", "cluster.gpus_per_node=1")
_PART = ("data", "plugins", "hydra", "train.validation_samples", "parallel.micro_batch_size", "model.sequence_length",
         "run.folder")
_GROUPS = 3
"""What may be set of a model that is only looked at: the first are groups."""
KEPT = "pretrained"
"""Folder in a run's folder for the tokenizer of the model that it began from."""


@dataclass(frozen=True)
class Origin:
    """Where a model is: the folder of a published one, or the checkpoint `index` at `path`, of a run at `folder`."""

    folder: Path
    path: Path | None = None
    index: Index | None = None

    @property
    def words(self) -> str:
        """Name it for people."""
        return str(self.folder if self.path is None else self.path)

    @property
    def texts(self) -> Path | None:
        """Return the folder with what a published model came with; None where there is none."""
        own = self.folder if self.path is None else self.folder / KEPT
        return own if is_folder(own) else None


def find_origin_of_model(text: str, base: Path, step: int | None = None) -> Origin:
    """Return what `text` names: the folder of a published model, or a run as `find_run` finds it, below `base`.

    `step` is that of a checkpoint; default: the newest. Raises ConfigurationError where there is none.
    """
    path = at_home(text)
    if is_file(path / "config.json") and not is_file(path / "config.yaml"):
        refuse_two(text, base)
        if step is not None:
            raise ConfigurationError(f"--step {step}: {path} is a published model, which has no steps. Leave it out.")
        return Origin(path.absolute())
    run = _run(text, base, path)
    known = newest_first(run.checkpoints)
    wanted = known[0] if step is None and known else checkpoint_path(run.checkpoints, step or 0)
    if not known and (why := no_weights(run)):
        raise ConfigurationError(f"{run.path} has no checkpoint: {why}.")
    if wanted not in known:
        names = ", ".join(each.name for each in known) or "none (train.checkpoint_every is 0 by default)"
        raise ConfigurationError(f"{run.path} has no {'checkpoint' if step is None else wanted.name}; its checkpoints: "
                                 f"{names}.")
    try:
        return Origin(run.path, wanted, read_index(wanted))
    except CheckpointError as error:
        raise ConfigurationError(f"{wanted} cannot be used: {error}. Name another checkpoint of the run by "
                                 "--step N.") from error


def _run(text: str, base: Path, path: Path) -> RunFolder:
    try:
        return find_run(text, base)
    except ConfigurationError as error:
        if not is_folder(path):
            raise
        raise ConfigurationError(f"{path} is neither the folder of a run nor that of a published model, which has a "
                                 "file config.json beside its weights. Name one of them.") from error


def settings_of(origin: Origin, overrides: Sequence[str]) -> tuple[Any, Architecture]:
    """Return the configuration that says the data, and the architecture of the model.

    The data are the run's own, changed by `overrides`. Raises ConfigurationError as composing does.
    """
    if origin.index is None:
        config = compose([*_ONE, f"model.from_pretrained={origin.folder}", *overrides])
        _refuse_idle(overrides, (*_PART, *(f"model.{name}" for name in OWN)))
        return config, Architecture.from_config(config.model)
    recorded = resolved(origin.index.extra.get("model", {}))
    try:
        architecture = Architecture(**recorded)
    except TypeError as error:
        raise ConfigurationError(f"{origin.words} is of a newer version of holmes_hpc: {error}.") from error
    model = [f"model.vocab_size={architecture.vocab_size}", f"model.sequence_length={architecture.sequence_length}"]
    kept = _kept_configuration(origin)
    own = [] if any(each.startswith("data=") for each in overrides) else _data_of(kept)
    own += _samples_of(kept)
    texts = [] if origin.texts is None or is_of_bytes(origin.texts, architecture.vocab_size) else [
        f"data.tokenizer={_written(str(origin.texts))}"]
    config = compose([*_ONE, *model, *texts, *own, *overrides])
    _refuse_idle(overrides, _PART)
    length = int(config.model.sequence_length)
    return config, replace(architecture, sequence_length=length)


def load_model(origin: Origin, architecture: Architecture) -> StageModule:
    """Return the model with its weights, in float32 on the CPU. Raises ConfigurationError where they cannot be used."""
    layers = architecture.num_layers
    try:
        if origin.path is None or origin.index is None:
            folder, family = ModelFolder(origin.folder), family_named(str(architecture.family))
            check_weights(folder, family, architecture, {each.name: each.shape for each in architecture.parameters()},
                          architecture.vocab_size)
            with PretrainedWeights(origin.folder, architecture) as weights:
                model = build_stage(architecture, 0, layers, first=True, last=True, seed=0, weights=weights)
        else:
            check_model(origin.index, architecture)
            saved: Any = _SavedWeights(origin.path, origin.index)
            model = build_stage(architecture, 0, layers, first=True, last=True, seed=0, weights=saved)
    except CheckpointError as error:
        other = "" if origin.path is None else " Name another checkpoint of the run by --step N."
        raise ConfigurationError(f"{origin.words} cannot be used: {error}.{other}") from error
    return model.requires_grad_(False)


class _SavedWeights:
    """The weights of a checkpoint, given as those of a published model are: so nothing is drawn first."""

    def __init__(self, path: Path, index: Index) -> None:
        self._path, self._index = path, index

    def part(self, info: ParameterInfo, share: TensorShare) -> torch.Tensor:
        """Return a whole parameter."""
        tensor = torch.empty(info.shape)
        fill(self._path, self._index, [Entry(MODEL_PREFIX + info.name, info.shape, (0,) * tensor.ndim, info.shape,
                                             tensor)])
        return tensor


def _kept_configuration(origin: Origin) -> Mapping[str, Any]:
    config = read_yaml(RunFolder.open(origin.folder).config_path)
    return config if isinstance(config, dict) else {}


def _samples_of(config: Mapping[str, Any]) -> list[str]:
    """Return how many samples a run validates with, as an override."""
    train = config.get("train")
    samples = whole_number(train.get("validation_samples"), least=1) if isinstance(train, dict) else None
    return [] if samples is None else [f"train.validation_samples={samples}"]


def _data_of(config: Mapping[str, Any]) -> list[str]:
    """Return the data of a run as overrides; the tokenizer that its model came with is the one that the run kept."""
    data = config.get("data")
    if not isinstance(data, dict):
        return []
    model = config.get("model")
    came = model.get("from_pretrained") if isinstance(model, dict) else None
    left = {"cache"}
    if str(data.get("tokenizer")).startswith("${") or (came is not None and data.get("tokenizer") == came):
        left.add("tokenizer")
    return [f"data.{name}={_written(value)}" for name, value in data.items() if name not in left]


def _refuse_idle(overrides: Sequence[str], part: Sequence[str]) -> None:
    """Refuse settings that play no part where nothing is trained. `part` are those that do, or their groups."""
    for each in overrides:
        name = each.lstrip("+~").partition("=")[0].strip()
        if not any(name == known or name.startswith((f"{known}.", f"{known}/", f"{known}@")) for known in part):
            raise ConfigurationError(f"{each}: {name} plays no part, since nothing is trained. Leave it out; what "
                                     f"does: settings of data, and {', '.join(part[_GROUPS:])}.")


def _written(value: Any) -> str:
    """Return a value as an override has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(_written(each) for each in value)}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}: {_written(each)}" for name, each in value.items() if each is not None) + "}"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    return str(value)
