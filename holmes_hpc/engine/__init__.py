"""Runs a plan: pipelines, gradients, optimizer."""

from holmes_hpc.engine.trainer import Job, Trainer

__all__ = ["Job", "Trainer"]
