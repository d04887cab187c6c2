"""The safetensors files that an export writes: which tensor lies where, and their headers. Needs no torch.

Format: https://github.com/huggingface/safetensors. Everything is known before the first byte of weights is written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holmes_hpc.architecture import Architecture
from holmes_hpc.families import Family, Source
from holmes_hpc.families.folder import INDEX, WEIGHTS

TYPES = {"float32": ("F32", 4), "bfloat16": ("BF16", 2), "float16": ("F16", 2)}
"""Types that weights are written in: their names in files, and bytes."""
_ALIGNMENT = 8


@dataclass(frozen=True)
class Target:
    """A tensor of an exported file: its shape, where its bytes begin, and our parameters that it is made of."""

    name: str
    shape: tuple[int, ...]
    begin: int
    parts: tuple[tuple[str, Source], ...]

    @property
    def row_length(self) -> int:
        """The elements of one row."""
        return math.prod(self.shape[1:])


@dataclass(frozen=True)
class OutputFile:
    """One exported file: its header, its size in bytes, and its tensors."""

    name: str
    header: bytes
    size: int
    targets: tuple[Target, ...]


def output_files(architecture: Architecture, family: Family, dtype: str, largest_bytes: int) -> list[OutputFile]:
    """Return the files of an export, each at most of `largest_bytes` but for a tensor that is larger by itself."""
    element = TYPES[dtype][1]
    shapes: dict[str, tuple[int, ...]] = {}
    parts: dict[str, list[tuple[str, Source]]] = {}
    for info in architecture.parameters():
        source = family.source(architecture, info.name)
        shapes[source.name] = source.shape(info.shape)
        parts.setdefault(source.name, []).append((info.name, source))
    groups: list[list[str]] = [[]]
    held = 0
    for name, shape in shapes.items():
        size = math.prod(shape) * element
        if groups[-1] and held + size > largest_bytes:
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += size
    count = len(groups)
    names = [WEIGHTS] if count == 1 else [f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)]
    return [_file(name, group, shapes, parts, dtype) for name, group in zip(names, groups, strict=True)]


def write_index(folder: Path, files: list[OutputFile]) -> None:
    """Write the index that says which tensor lies in which of several files; one file needs none."""
    if len(files) > 1:
        total = sum(file.size - len(file.header) for file in files)
        names = {target.name: file.name for file in files for target in file.targets}
        text = json.dumps({"metadata": {"total_size": total}, "weight_map": names}, indent=2)
        (folder / INDEX).write_text(text + "\n")


def _file(name: str, group: list[str], shapes: Mapping[str, tuple[int, ...]],
          parts: Mapping[str, list[tuple[str, Source]]], dtype: str) -> OutputFile:
    kind, element = TYPES[dtype]
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    begins, begin = {}, 0
    for each in group:
        end = begin + math.prod(shapes[each]) * element
        entries[each] = {"dtype": kind, "shape": list(shapes[each]), "data_offsets": [begin, end]}
        begins[each], begin = begin, end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    targets = tuple(Target(each, shapes[each], len(header) + begins[each], tuple(parts[each])) for each in group)
    return OutputFile(name, header, len(header) + begin, targets)
