"""Training data: batches that depend on seed, step and sample, and on no layout."""

from holmes_hpc.data.dataset import Dataset, open_dataset
from holmes_hpc.data.sources import Source
from holmes_hpc.data.token_file import TokenFileWriter

__all__ = ["Dataset", "Source", "TokenFileWriter", "open_dataset"]
