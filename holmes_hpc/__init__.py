"""Train one large language model across Slurm partitions whose nodes have unlike NICs and unlike GPUs.

    import holmes_hpc
    plan = holmes_hpc.plan(["+cluster=mixed"])
    result = holmes_hpc.train({"cluster": "mixed", "train.steps": 20})

`compose`, `plan`, `train` and `analysis` are described in docs/python.md. They are fetched when they are first used, so
importing the package costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import analysis
    from holmes_hpc.api import Config, Result, compose, plan, train

__version__ = "0.1.0"
__all__ = ["Config", "Result", "__version__", "analysis", "compose", "plan", "train"]

if sys.argv[:1] == ["-m"] or (sys.argv and sys.argv[0].endswith("holmes")):
    importlib.import_module("holmes_hpc.early").guard()

_OF_THE_API = ("Config", "Result", "compose")
_COMMANDS = ("plan", "train")
"""Modules that are run by `python -m` and called as functions: an import binds a module's name to the module."""


def __getattr__(name: str) -> Any:
    if name in _COMMANDS:
        return importlib.import_module(f"holmes_hpc.{name}")
    if name in _OF_THE_API:
        return getattr(importlib.import_module("holmes_hpc.api"), name)
    if name == "analysis":
        return importlib.import_module("holmes_hpc.resources").our_analysis()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
