"""Rules for the steps of `cluster.emulate.disturbances`: what no step of the run has would be left out unsaid."""

from __future__ import annotations

from omegaconf import DictConfig

from holmes_hpc.errors import ConfigurationError


def check_disturbed_steps(config: DictConfig) -> None:
    """Check the steps that disturbances name against those of the run. Raises ConfigurationError."""
    emulate, steps = config.cluster.emulate, int(config.train.steps)
    for number, each in enumerate(emulate.disturbances):
        if each.from_step > steps:
            raise ConfigurationError(
                f"cluster.emulate.disturbances.{number}.from_step={each.from_step}: the run ends with step {steps}, so "
                f"this would never act; valid: 1 to {steps}, or raise train.steps.")
    if emulate.plan_for_step is not None and emulate.plan_for_step > steps:
        raise ConfigurationError(
            f"cluster.emulate.plan_for_step={emulate.plan_for_step}: the run ends with step {steps}; valid: 1 to "
            f"{steps}, or raise train.steps.")
