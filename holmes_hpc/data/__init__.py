"""Training data: batches that depend on seed, step and sample, and on no layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holmes_hpc.data.sources import Source
from holmes_hpc.data.token_file import TokenFileWriter

if TYPE_CHECKING:
    from holmes_hpc.data.dataset import Dataset, open_dataset, open_everything

__all__ = ["Dataset", "Source", "TokenFileWriter", "open_dataset", "open_everything"]


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is asked for: files are checked, and written, without it."""
    if name in ("Dataset", "open_dataset", "open_everything"):
        from holmes_hpc.data import dataset

        return getattr(dataset, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
