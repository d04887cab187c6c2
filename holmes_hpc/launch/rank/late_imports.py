"""What torch imports in the midst of a pipeline's first step: in a process that forks ranks, better before."""

from __future__ import annotations

import importlib
from contextlib import suppress

_MODULES = ("torch.fx.experimental.symbolic_shapes",)
"""With sympy half a CPU second: in a backward that is given a gradient, as all stages but the last are."""


def import_late_modules() -> None:
    """Import them now, so that forked ranks have them; a release of torch without one does not need it."""
    for name in _MODULES:
        with suppress(ImportError):
            importlib.import_module(name)
