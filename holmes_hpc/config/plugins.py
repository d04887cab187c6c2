"""Loads the modules that the setting `plugins` names: what they add has to be known before settings are checked."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from omegaconf import ListConfig

from holmes_hpc import registry
from holmes_hpc.errors import ConfigurationError, HolmesError
from holmes_hpc.paths import at_home, is_file, unreadable

_PLUGIN = "A plug-in calls holmes_hpc.extend (docs/extending.md); name its module or the path of its .py file."


def load_plugins(config: Any) -> None:
    """Import every plug-in once in this process, and make paths of files absolute for ranks that start elsewhere.

    An entry is the name of a module, or the path of a `.py` file. Raises ConfigurationError when one is missing, is no
    plug-in, raises itself while it is imported, or adds a name that is taken; what it added until then is taken back.
    """
    entries = config.get("plugins")
    if not isinstance(entries, ListConfig | list):
        return  # the check of types says what is wrong
    for index, entry in enumerate(entries):
        if not isinstance(entry, str):
            continue
        where = f"plugins.{index}={entry}"
        if entry.endswith(".py"):
            path = at_home(entry, f"plugins.{index}").absolute()
            _load(where, lambda path=path, where=where: _import_file(path, where))  # type: ignore[misc]
            entries[index] = str(path)
        else:
            if entry.partition(".")[0] in sys.stdlib_module_names:
                raise ConfigurationError(f"{where}: this is a module of Python itself, which adds nothing. {_PLUGIN}")
            if "" in entry.split(".") or any(map(str.isspace, entry)):
                raise ConfigurationError(f"{where}: this is no name of a module. Name a module, such as mine.kinds, or "
                                         "the path of its .py file.")
            _load(where, lambda entry=entry: importlib.import_module(entry))  # type: ignore[misc]


def _load(where: str, load: Any) -> None:
    before = {name: dict(each) for name, each in registry.ALL.items()}
    try:
        module = load()
        if before == {name: dict(each) for name, each in registry.ALL.items()} and not _uses_extend(module):
            raise ConfigurationError(f"the module adds nothing. {_PLUGIN}")
    except (Exception, SystemExit) as error:
        for name, entries in before.items():
            registry.ALL[name].replace_all(entries)
        if isinstance(error, HolmesError):
            raise ConfigurationError(f"{where}: {error}") from error
        file, line = _where(error)
        remedy = ("Install it on every node, or name the path of its .py file."
                  if isinstance(error, ModuleNotFoundError) else "Mend it there.")
        raise ConfigurationError(f"{where}: importing it failed in {file}, line {line}: "
                                 f"{type(error).__name__}: {error}. {remedy}") from error


def _uses_extend(module: ModuleType) -> bool:
    """Whether a module is made to add something: one that was imported before does so only once."""
    extend = sys.modules.get("holmes_hpc.extend")
    if extend is None or module is extend:
        return False
    return any(value is extend or getattr(value, "__module__", None) == extend.__name__
               for value in vars(module).values())


def _where(error: BaseException) -> tuple[str, int | None]:
    """Return the file and line of an error: of a syntax error those that it names."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.filename, last.lineno


def _import_file(path: Path, where: str) -> ModuleType:
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    name = f"holmes_hpc_plugin_{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    if not is_file(path):
        raise ConfigurationError(f"no such file: {path}. Name a .py file that every node can read, or a module.")
    try:
        path.open("rb").close()
    except OSError as error:
        raise unreadable(error) from error
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickles and dataclasses look it up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
