"""Look at a user's own configuration files before Hydra reads them, whose messages about them name no file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from holmes_hpc.config.folders import package_folder, user_folder
from holmes_hpc.config.written_files import check_size
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.paths import is_there

_TEXT = "tag:yaml.org,2002:str"
_MOST_BYTES = 1 << 20
_EXAMPLES = {"cluster": "name: ours, and partitions: {LABEL: {nodes: 2, gpus_per_node: 8, gpu: a100-80g, nic: hdr200}}"}


def searched_folders(overrides: Sequence[str]) -> list[Path]:
    """Return the folders of users' files: those of `hydra.searchpath`, then the user's own."""
    texts = [text.split("=", 1)[1] for text in overrides if text.lstrip("+").startswith("hydra.searchpath=")]
    named = [path.strip(" '\"") for text in texts for path in text.strip("[] ").split(",")]
    own = user_folder()
    return [*(Path(path.removeprefix("file://")) for path in named if path and not path.startswith("pkg://")),
            *([] if own is None else [own])]


def own_file(group: str, name: str, overrides: Sequence[str]) -> Path | None:
    """Return a user's own file, folder or dangling link for an option; None where there is none, or ours is taken."""
    return None if _ships(group, name) else _users_file(group, name, overrides)


def shadowed_file(group: str, name: str, overrides: Sequence[str]) -> Path | None:
    """Return a user's own file that has the name of an option which ships with the package, and so is never taken."""
    return _users_file(group, name, overrides) if _ships(group, name) else None


def _ships(group: str, name: str) -> bool:
    return (package_folder() / group / f"{name}.yaml").is_file()


def _users_file(group: str, name: str, overrides: Sequence[str]) -> Path | None:
    paths = (folder / group / f"{name}.yaml" for folder in searched_folders(overrides))
    return next((path for path in paths if path.is_symlink() or is_there(path)), None)


def own_files(overrides: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield the group and path of each user's own file that the overrides choose."""
    for text in overrides:
        group, _, name = text.lstrip("+").partition("=")
        if name and "." not in group and (path := own_file(group, name, overrides)):
            yield group, path


def why_not_a_file(path: Path) -> str:
    """Say why what lies at `path` is not offered as an option, or nothing where it is a file."""
    if path.is_dir():
        return f"{path} is a folder, and a file belongs there: rename or replace it."
    if not path.exists():
        return f"{path} is a link to a file that does not exist: mend the link, or put the file there."
    return ""


def check_file(group: str, path: Path) -> None:
    """Refuse a file that is unreadable, not UTF-8, not YAML, or holds no settings. Raises ConfigurationError."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ConfigurationError(f"{path}: it has {path.stat().st_size:,} bytes, and a configuration file at most "
                                     f"{_MOST_BYTES:,}. Is this the file that you mean?")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not UTF-8 text: byte 0x{error.object[error.start]:02x} at place "
                                 f"{error.start}. Save the file as UTF-8.") from error
    except OSError as error:
        raise ConfigurationError(f"{path}: it may not be read ({error.strerror}). Make it readable, or name another "
                                 "folder by XDG_CONFIG_HOME or hydra.searchpath.") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError as error:
        raise ConfigurationError(f"{path}: its brackets are nested too deeply to be read. Write settings, each `KEY: "
                                 "VALUE`.") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise ConfigurationError(f"{path}{place}: {error.problem or error.context}; not readable as YAML. Mend that "
                                 "line.") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: {str(error).splitlines()[0]}; not readable as YAML. Save the file as plain "
                                 "text.") from error
    if node is not None:
        check_size(str(path), node)
    problem = _problem(group, node)
    if problem:
        remedy = f"Write settings, each `KEY: VALUE`, such as {_EXAMPLES[group]}." if group in _EXAMPLES else \
            f"Write settings of {group}, each `KEY: VALUE`."
        raise ConfigurationError(f"{path}: {problem}. {remedy}")


def _problem(group: str, node: yaml.Node | None) -> str:
    """Return what is wrong with the content of a file, or nothing."""
    if node is None:
        return "the file is empty"
    if not isinstance(node, yaml.MappingNode):
        return "the file holds a list" if isinstance(node, yaml.SequenceNode) else "the file holds a single value"
    entries = {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}
    if "defaults" in entries:
        return "" if isinstance(entries["defaults"], yaml.SequenceNode) else \
            "`defaults` names the files to build on, and is no list such as [mixed]"
    return _partitions_problem(entries) if group == "cluster" else ""


def _partitions_problem(entries: dict[str, yaml.Node]) -> str:
    partitions = entries.get("partitions")
    if partitions is None:
        return ""
    if not isinstance(partitions, yaml.MappingNode):
        return "cluster.partitions is no mapping of labels"
    if not partitions.value and "nodes" not in entries:
        return "cluster.partitions has no label"
    for label, partition in partitions.value:
        if not isinstance(partition, yaml.MappingNode):
            return f"the label {label.value} of cluster.partitions holds no settings"
        if label.tag != _TEXT:
            return f"the label {label.value} of cluster.partitions is no text: write it in quotes, or better a name"
    return ""
