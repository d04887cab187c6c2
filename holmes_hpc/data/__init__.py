"""Training data: batches that depend on seed, step and sample, and on no layout."""

from holmes_hpc.data.dataset import Dataset, open_dataset

__all__ = ["Dataset", "open_dataset"]
