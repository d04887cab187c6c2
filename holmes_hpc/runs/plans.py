"""Reads the plan of a run, which another version or anybody may have written."""

from __future__ import annotations

from pathlib import Path

from holmes_hpc.errors import ConfigurationError
from holmes_hpc.foreign import ForeignError, read_text
from holmes_hpc.values import Plan


def read_plan(path: Path) -> Plan:
    """Return the plan in a file. Raises ConfigurationError for one that is missing, damaged, or of no known format."""
    try:
        return Plan.from_json(read_text(path))
    except ForeignError:
        raise
    except ValueError as error:
        raise ConfigurationError(f"{path}: no plan that this version reads: {error}; name a run of this version, or "
                                 "plan anew") from error
