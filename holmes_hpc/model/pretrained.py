"""Weights of a published model in the place of drawn ones: each rank reads the slices that it holds."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from holmes_hpc.architecture import Architecture, ParameterInfo
from holmes_hpc.families import ModelFolder, Source, family_named
from holmes_hpc.families.checking import TIED, sources_of
from holmes_hpc.model.share import TensorShare


class PretrainedWeights:
    """The weights in the folder of a published model. Use it as a context: leaving it unmaps the files."""

    def __init__(self, folder: str | Path, architecture: Architecture) -> None:
        self._folder, self._architecture = ModelFolder(folder), architecture
        self._family = family_named(str(architecture.family))
        self._open = ExitStack()
        self._sources: Mapping[str, Source] = {}
        self._files: dict[str, Any] = {}
        self.read_bytes = 0
        """Bytes of weights that were asked for."""

    def __enter__(self) -> PretrainedWeights:
        """Open the files; only their headers are read. Raises ConfigurationError for a folder that cannot be used."""
        from safetensors import SafetensorError, safe_open

        self._stored = self._folder.tensors()
        shapes = {info.name: info.shape for info in self._architecture.parameters()}
        self._sources = sources_of(self._family, self._architecture, shapes, self._stored)
        for name, path in self._folder.weight_files().items():
            try:
                self._files[name] = self._open.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                self._open.close()
                raise self._folder.wrong(f"{name} cannot be read: {error}") from error
        return self

    def __exit__(self, *error: Any) -> None:
        """Unmap the files."""
        self._files.clear()
        self._open.close()

    def part(self, info: ParameterInfo, share: TensorShare) -> Tensor:
        """Return this share's part of a parameter, in the type in which it is stored; what is wider as float32.

        Raises ConfigurationError where it is missing, has another shape, or has values that are not finite.
        """
        part = self._read(self._sources[info.name], info, share)
        # By the least and the largest: one pass, and no copy of what may be gigabytes.
        if part.numel() and not bool(torch.isfinite(torch.stack(torch.aminmax(part))).all()):
            raise self._folder.wrong(f"{self._sources[info.name].name} has values that are not finite",
                                     "The file is damaged; take another.")
        if info.name == TIED and self._architecture.tied_embeddings:
            self._check_tied(info, share, part)
        return part

    def _check_tied(self, info: ParameterInfo, share: TensorShare, part: Tensor) -> None:
        """Refuse a head that is stored beside a tied table and is another one."""
        name = self._family.names["head.output"] + ".weight"
        if name in self._stored and not torch.equal(self._read(Source(name), info, share), part):
            raise self._folder.wrong(f"config.json says that {name} is {self._sources[TIED].name}, and they differ",
                                     "Set tie_word_embeddings to false there.")

    def _read(self, source: Source, info: ParameterInfo, share: TensorShare) -> Tensor:
        stored = self._stored.get(source.name)
        if stored is None or stored.shape != source.shape(info.shape):
            raise self._folder.wrong(f"{source.name} is {list(stored.shape) if stored else 'missing'}, and must be "
                                     f"{list(source.shape(info.shape))}")
        slices = [slice(0, size) for size in info.shape]
        if info.split_dim is not None:
            slices[info.split_dim] = slice(*share.bounds(info.shape[info.split_dim]))
        place = self._files[stored.file].get_slice(source.name)
        runs = [self._run(place, source, slice(first, first + count), slices[1:])
                for _, first, count in source.spans(slices[0].start, slices[0].stop)]
        if not runs:
            return torch.empty([each.stop - each.start for each in slices])
        return runs[0] if len(runs) == 1 else torch.cat(runs)

    def _run(self, place: Any, source: Source, rows: slice, rest: list[slice]) -> Tensor:
        found = cast(Tensor, place[(*rest, rows)].T if source.transposed else place[(rows, *rest)])
        self.read_bytes += found.numel() * found.element_size()
        return found.float() if found.dtype == torch.float64 else found
