"""Compose a checked configuration from the configuration files and a list of overrides."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import hydra
from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, flag_override

from holmes_hpc.config.check import check
from holmes_hpc.config.explain import explain
from holmes_hpc.config.files import own_files
from holmes_hpc.config.folders import package_folder
from holmes_hpc.config.overrides import check_overrides, expand_sweep
from holmes_hpc.config.schema import Root
from holmes_hpc.config.written_files import text_as_written
from holmes_hpc.config.written_overrides import as_written
from holmes_hpc.errors import ConfigurationError

CONFIG_NAME = "config"
HYDRA_VERSION_BASE = "1.3"


def register() -> None:
    """Give Hydra the schema, which the defaults list of config.yaml names first, and our resolver `${unique:}`."""
    OmegaConf.register_new_resolver("unique", lambda: secrets.token_hex(2), use_cache=True, replace=True)
    store = ConfigStore.instance()
    if "schema.yaml" not in store.repo:  # making it takes an eighth of composing
        store.store(name="schema", node=Root, provider="holmes_hpc")
    # Hydra copies all that is registered for every composition, to change where it looks for files, and then only reads
    # it: a tenth of composing. What it loads from there it copies once more.
    vars(store)["__deepcopy__"] = lambda memo: store


def compose(overrides: Sequence[str] = (), *, cluster_required: bool = True) -> DictConfig:
    """Return the checked configuration that a command would get from the same overrides.

    The files are those of the package, of `~/.config/holmes_hpc`, and of the folders in `hydra.searchpath`. Raises
    ConfigurationError; with `cluster_required` also when the overrides name no cluster.
    """
    overrides = as_written(overrides)
    with _composing(overrides) as loader:
        return _compose(overrides, loader, cluster_required)[0]


def compose_job(overrides: Sequence[str], *, cluster_required: bool = True) -> tuple[DictConfig, bool]:
    """Return the checked configuration of a single job, and whether it sets what only Hydra's own run does.

    That is anything below `hydra` but the search path: callbacks, variables of the environment, logging, folders.
    """
    overrides = as_written(overrides)
    with _composing(overrides) as loader:
        config, hydra_config = _compose(overrides, loader, cluster_required)
    return config, _asks_hydra(overrides, hydra_config)


def compose_sweep(overrides: Sequence[str], *, cluster_required: bool = True) -> list[DictConfig]:
    """Return the checked configuration of every job of a sweep. Raises ConfigurationError."""
    overrides = as_written(overrides)
    with _composing(overrides) as loader:
        jobs = expand_sweep(overrides, loader)
        configs = []
        for number, job in enumerate(jobs, start=1):
            try:
                configs.append(_compose(job, loader, cluster_required)[0])
            except Exception as error:
                which = f"job {number} of {len(jobs)} ({' '.join(job)})"
                raise ConfigurationError(f"{which}: {explain(error, job)}") from error
        return configs


@contextmanager
def _composing(overrides: Sequence[str]) -> Iterator[ConfigLoader]:
    """Give Hydra's loader for our files, and turn whatever is raised inside into ConfigurationError."""
    register()
    try:
        with text_as_written(), initialize_config_dir(
            version_base=HYDRA_VERSION_BASE, config_dir=str(package_folder()), job_name="holmes"
        ):
            yield GlobalHydra.instance().config_loader()
    except Exception as error:  # files of a site can make Hydra and OmegaConf raise nearly anything
        if isinstance(error, ConfigurationError):
            raise
        raise explain(error, overrides) from error


def _compose(overrides: Sequence[str], loader: ConfigLoader, cluster_required: bool) -> tuple[DictConfig, DictConfig]:
    """Return the configuration, and the part of it that is Hydra's own."""
    check_overrides(overrides, loader)
    config = hydra.compose(CONFIG_NAME, overrides=list(overrides), return_hydra_config=True)
    hydra_config = config.hydra
    with flag_override(config, ["readonly", "struct"], False):
        del config["hydra"]
    try:
        check(config, cluster_required=cluster_required, overrides=overrides)
    except ConfigurationError as error:
        raise ConfigurationError(_own_place(str(error), overrides) + str(error)) from error
    return config, hydra_config


def _asks_hydra(overrides: Sequence[str], hydra_config: DictConfig) -> bool:
    """Say whether an override or a file sets something of Hydra's that acting without Hydra would leave undone."""
    names = [text.lstrip("+~") for text in overrides]
    if any(name.startswith(("hydra.", "hydra/", "hydra@")) and not name.startswith("hydra.searchpath=")
           for name in names):
        return True
    logging = [hydra_config.runtime.choices.get(f"hydra/{name}_logging") for name in ("job", "hydra")]
    return bool(hydra_config.callbacks or hydra_config.job.env_set or hydra_config.verbose or hydra_config.job.chdir
                or hydra_config.output_subdir or hydra_config.run.dir != "." or logging != ["stderr", "stderr"])


def _own_place(message: str, overrides: Sequence[str]) -> str:
    """Return the user's own file that set what a message begins with, unless an override set it."""
    key = re.split(r"[\s=:]", message, maxsplit=1)[0]
    if any(text.lstrip("+").partition("=")[0] == key for text in overrides):
        return ""
    return next((f"file {path}: " for group, path in own_files(overrides) if key.startswith(f"{group}.")), "")
