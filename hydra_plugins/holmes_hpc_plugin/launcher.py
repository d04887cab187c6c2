"""Hydra's launcher of holmes_hpc: the jobs of a sweep go to Slurm together, or run here one after another."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus, configure_log, filter_overrides, setup_globals
from omegaconf import open_dict

from holmes_hpc.errors import JobFailedError
from holmes_hpc.runs.sweep_record import close_record


@dataclass
class HolmesLauncherConf:
    """The launcher's configuration: none, since `launch.*` holds it for single runs too."""

    _target_: str = "hydra_plugins.holmes_hpc_plugin.launcher.HolmesLauncher"


ConfigStore.instance().store(group="hydra/launcher", name="holmes", node=HolmesLauncherConf, provider="holmes_hpc")


class HolmesLauncher(BasicLauncher):
    """Gives all jobs to the command's own `sweep`; where it takes none, Hydra's basic launcher runs them in order."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Launch the jobs and return one JobReturn for each; a failed one returns NaN, or for other sweepers fails."""
        assert self.config is not None
        place = Path(str(self.config.hydra.sweep.dir)).absolute()
        close_record(place)
        sweep = getattr(self.task_function, "sweep", None)
        if sweep is None or len(job_overrides) < 2:
            return super().launch(job_overrides, initial_job_idx)
        setup_globals()
        assert self.hydra_context is not None
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        configs = []
        for overrides in job_overrides:
            config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
            with open_dict(config):
                del config["hydra"]
            configs.append(config)
        words = [" ".join(filter_overrides(overrides)) for overrides in job_overrides]
        outcomes = sweep(configs, words, place / f"jobs-{initial_job_idx}" if initial_job_idx else place)
        if outcomes is None:
            return super().launch(job_overrides, initial_job_idx)
        returns = []
        for overrides, config, (status, value) in zip(job_overrides, configs, outcomes, strict=True):
            done = JobReturn(overrides=overrides, cfg=config, status=JobStatus.COMPLETED)
            done.return_value = float("nan") if status else value
            if status and self.config.hydra.runtime.choices.get("hydra/sweeper") != "basic":
                done.status = JobStatus.FAILED
                done.return_value = JobFailedError("the job has failed, as the messages above say; "
                                                   "hydra.sweeper.max_failure_rate=1 lets the sweep go on all the same")
            returns.append(done)
        return returns
