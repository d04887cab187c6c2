"""The trackers that come with holmes_hpc, each of a library that may be installed."""

from __future__ import annotations

TRACKER_KINDS = {
    "tensorboard": "event files in the run folder, for `tensorboard --logdir`",
    "wandb": "Weights & Biases; mode: offline in run.tracker_options.wandb keeps it on this machine",
    "mlflow": "MLflow; tracking_uri in run.tracker_options.mlflow, default: a folder in the run folder",
}
"""Name, which is that of the package too, and a line of help."""
DEFAULT_TRACKER = "tensorboard"
"""The one that is taken where nobody chose and its package is installed."""
