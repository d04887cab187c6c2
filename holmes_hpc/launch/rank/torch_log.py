"""What torch's own C++ code writes into a rank's log."""

from __future__ import annotations

from collections.abc import MutableMapping

LEVEL = "TORCH_CPP_LOG_LEVEL"


def errors_only(environment: MutableMapping[str, str]) -> None:
    """Let torch's C++ code log errors, but no warnings, unless the user chose a level; before torch is imported.

    It warns for every connection whose address no name server knows (`The hostname of the client socket cannot be
    retrieved`), as on most fabrics. What goes wrong is an error or an exception, and Python's warnings are others.
    """
    environment.setdefault(LEVEL, "ERROR")
