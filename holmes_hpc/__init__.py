"""Train one large language model across Slurm partitions whose nodes have unlike NICs and unlike GPUs."""

__version__ = "0.1.0"
