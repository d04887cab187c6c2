"""A folder with a published model: its configuration, and where each stored tensor lies. Nothing in it is executed.

A file must lie in the folder itself. A link out of it is refused, but for those of Hugging Face's own cache, where all
files are links to `blobs` beside `snapshots`.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holmes_hpc.errors import ConfigurationError
from holmes_hpc.families.reading import NotKnownError, sample_length, settings_of
from holmes_hpc.foreign import ForeignError, read_json
from holmes_hpc.paths import at_home

FOLDER_KEY = "model.from_pretrained"
CONFIGURATION = "config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
TEXTS = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
         "added_tokens.json", "chat_template.jinja", "vocab.json", "merges.txt", "tokenizer.model")
"""Files beside the weights that a trained model is handed on with."""
_POINTER = b"version https://git-lfs.github.com"
_MOST_CONFIGURATION_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Stored:
    """A stored tensor: its file, shape and type, as its header says."""

    file: str
    shape: tuple[int, ...]
    dtype: str


class ModelFolder:
    """A folder that `model.from_pretrained` names. Nothing is read before it is asked for."""

    def __init__(self, path: str | Path) -> None:
        self.path = at_home(path, FOLDER_KEY).absolute()

    def wrong(self, fact: str, remedy: str = "") -> ConfigurationError:
        """Return the error to raise where the folder is not as it must be; names in its files may hold any character.
        """
        end = "" if fact.endswith(".") else "."
        text = f"{FOLDER_KEY}={self.path}: {fact}{end}{' ' + remedy if remedy else ''}"
        return ConfigurationError("".join(each if each.isprintable() else ascii(each)[1:-1] for each in text))

    def configuration(self) -> dict[str, Any]:
        """Return what `config.json` holds. Raises ConfigurationError."""
        if not self._is_folder():
            raise self.wrong("there is no such folder" if not os.path.lexists(self.path) else "it is no folder",
                             "Name a folder with config.json and model.safetensors, as Hugging Face distributes them; "
                             "nothing is fetched.")
        path = self.file(CONFIGURATION)
        if path is None:
            raise self.wrong(f"it has no {CONFIGURATION}", "Name the folder of a published model.")
        try:
            found = read_json(path, _MOST_CONFIGURATION_BYTES)
        except ForeignError as error:
            raise self.wrong(str(error)) from error
        if not isinstance(found, dict):
            raise self.wrong(f"{CONFIGURATION} holds no object")
        return found

    def settings(self, sequence_length: int | None = None) -> dict[str, Any]:
        """Return our settings of the group `model`, with sample length and name. Raises ConfigurationError."""
        configuration = self.configuration()
        try:
            settings = settings_of(configuration, sequence_length)
        except NotKnownError as error:
            raise self.wrong(f"{CONFIGURATION} cannot be used: {error}") from error
        return {"name": self.path.name, "sequence_length": sequence_length or sample_length(configuration), **settings}

    def file(self, name: str) -> Path | None:
        """Return the path of a file of the folder, None where it is missing. Raises ConfigurationError where it must
        not, or cannot, be read."""
        path = self.path / name
        if not name or Path(name).name != name:
            raise self.wrong(f"it names the file {name!r}, which does not lie in the folder itself")
        try:
            if not os.path.lexists(path):
                return None
            target = Path(os.path.realpath(path, strict=True))  # Path.resolve has another error for loops
            if path.is_symlink() and not self._may_hold(target):
                raise self.wrong(f"{name} is a link to {target}, out of the folder",
                                 "Put the file itself into the folder.")
            if not stat.S_ISREG(os.stat(target).st_mode):
                raise self.wrong(f"{name} is no regular file")
            with target.open("rb"):
                return target
        except OSError as error:
            raise self.wrong(f"{name} cannot be read: {error.strerror or error}",
                             "Give yourself the right to read it, or put the file there.") from error

    def weight_files(self) -> dict[str, Path]:
        """Return the files with weights by name. Raises ConfigurationError."""
        names = sorted(set(self._weight_map().values())) or [WEIGHTS]
        files = {name: self.file(name) for name in names}
        missing = [name for name, path in files.items() if path is None]
        if missing:
            if missing == [WEIGHTS]:
                raise self._without_weights()
            raise self.wrong(f"{INDEX} names {missing[0]}, which is missing"
                             + (f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""),
                             "Copy all files of the model.")
        return {name: path for name, path in files.items() if path is not None}

    def tensors(self) -> dict[str, Stored]:
        """Return every stored tensor by its name, as the headers say. Raises ConfigurationError for a file that is no
        whole safetensors file, and where the index says otherwise."""
        from safetensors import SafetensorError, safe_open

        found: dict[str, Stored] = {}
        for name, path in self.weight_files().items():
            try:
                with safe_open(path, framework="numpy") as file:
                    for key in file.keys():  # noqa: SIM118 - no mapping
                        place = file.get_slice(key)
                        if key in found:
                            raise self.wrong(f"{key} is in {found[key].file} and in {name}")
                        found[key] = Stored(name, tuple(place.get_shape()), str(place.get_dtype()))
            except (SafetensorError, OSError) as error:
                raise self._no_weights_in(name, path, error) from error
        for key, file in self._weight_map().items():
            if key not in found or found[key].file != file:
                raise self.wrong(f"{INDEX} says that {key} is in {file}, and it is not",
                                 "Copy all files of the model again.")
        return found

    def _weight_map(self) -> Mapping[str, str]:
        index = self.file(INDEX)
        if index is None:
            return {}
        try:
            found = read_json(index)
        except ForeignError as error:
            raise self.wrong(str(error)) from error
        names = found.get("weight_map") if isinstance(found, dict) else None
        if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
            raise self.wrong(f"{INDEX} has no weight_map of tensors to files")
        # Where there are both, transformers takes the one file.
        return {} if os.path.lexists(self.path / WEIGHTS) else names

    def _no_weights_in(self, name: str, path: Path, error: Exception) -> ConfigurationError:
        with path.open("rb") as file:
            begin = file.read(len(_POINTER))
        if begin == _POINTER:
            return self.wrong(f"{name} is a pointer of Git LFS and not the weights themselves",
                              "Run `git lfs pull` where the folder was cloned, or copy the file itself.")
        return self.wrong(f"{name} is no whole safetensors file: {error}", "Copy the file again.")

    def _without_weights(self) -> ConfigurationError:
        try:
            others = sorted(path.name for path in self.path.iterdir() if path.suffix in (
                ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".npz"))
        except OSError:
            others = []
        if others:
            return self.wrong(f"it has {others[0]} and no {WEIGHTS}: such files may hold programs or other layouts, "
                              "and are not read", "Convert it once with transformers: AutoModelForCausalLM."
                              "from_pretrained(FOLDER).save_pretrained(NEW_FOLDER) writes safetensors.")
        return self.wrong(f"it has no {WEIGHTS} and no {INDEX}", "Copy the weights as well; `holmes plan` needs "
                          f"{CONFIGURATION} alone.")

    def _is_folder(self) -> bool:
        try:
            return stat.S_ISDIR(os.stat(self.path).st_mode)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self.wrong(f"it cannot be read: {error.strerror or error}",
                             "Give yourself the right to read it.") from error

    def _may_hold(self, target: Path) -> bool:
        folder = self.path.resolve()
        if target.is_relative_to(folder):
            return True
        return folder.parent.name == "snapshots" and target.is_relative_to(folder.parent.parent / "blobs")
