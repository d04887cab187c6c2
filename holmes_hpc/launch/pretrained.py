"""A look at the published model that a run starts from, before it is started; and what its folder keeps."""

from __future__ import annotations

import logging
import math
import shutil
from pathlib import Path
from typing import Any

from holmes_hpc.architecture import Architecture
from holmes_hpc.families import FOLDER_KEY, ModelFolder, family_named
from holmes_hpc.families.checking import TYPES, check_numbers, check_weights
from holmes_hpc.families.folder import TEXTS
from holmes_hpc.launch.here.resume import WORDS
from holmes_hpc.runs import RunFolder
from holmes_hpc.words import size_words

LOG = logging.getLogger(__name__)

KEPT = "pretrained"
"""Folder in the run folder for the configuration and the tokenizer that the model came with."""
MOST_SCANNED_BYTES = 4 * 2**30
"""Weights beyond this are read by the ranks alone, each its part."""


def check_pretrained(config: Any) -> None:
    """Check the folder of `model.from_pretrained`, where a run is to start from its weights.

    Raises ConfigurationError for anything that the ranks would refuse.
    """
    if config.model.from_pretrained is None or str(config.train.resume) not in WORDS:
        return
    architecture = Architecture.from_config(config.model)
    folder, family = ModelFolder(config.model.from_pretrained), family_named(str(architecture.family))
    shapes = {info.name: info.shape for info in architecture.parameters()}
    stored = check_weights(folder, family, architecture, shapes, architecture.vocab_size)
    size = sum(TYPES[place.dtype] * math.prod(place.shape) for place in stored.values() if place.dtype in TYPES)
    if size <= MOST_SCANNED_BYTES:
        check_numbers(folder, family, stored, tied=architecture.tied_embeddings)
    wide = any(place.dtype == "F64" for place in stored.values())
    LOG.info("%s: %s, %s parameters in %s%s", FOLDER_KEY, family.model_type, f"{architecture.parameter_count():,}",
             size_words(size), "; float64 is read as float32" if wide else "")


def keep_texts(config: Any, folder: RunFolder) -> None:
    """Copy configuration and tokenizer of the published model into the run folder, for the export of what was trained.

    Raises ConfigurationError where they cannot be read any more.
    """
    if config.model.from_pretrained is None:
        return
    source, target = ModelFolder(config.model.from_pretrained), folder.path / KEPT
    target.mkdir(mode=0o700)
    for name in TEXTS:
        path = source.file(name)
        if path is not None:
            shutil.copyfile(path, Path(target, name))
