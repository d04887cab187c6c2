"""What the cluster's processes see of the file system, in a mount namespace of their own.

/run, /etc/slurm and /etc/hosts are the cluster's; the machine's own stay as they are. With a Debian tree the
processes see that tree, and in it the checkout, the Python that runs the tests, and the shared folder, at the
paths where the machine has them.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path


def mount(*arguments: str | Path) -> None:
    """Run the program `mount`; raises OSError with what it said."""
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"mount {' '.join(map(str, arguments))}: {done.stderr.strip()}")


def enter_file_system(base: Path, tree: Path | None, shared: Path) -> None:
    """Arrange the mounts of init, which has a mount namespace of its own already."""
    visible = _minimal([Path(__file__).resolve().parents[2], Path(sys.prefix), *_packages(), *_interpreter(),
                        shared.resolve()])
    if tree is not None:
        _enter_tree(tree, visible)
    os.chdir("/")
    mount("-t", "tmpfs", "-o", "mode=755", "run", "/run")
    _open_the_way(visible)
    base.mkdir(parents=True)
    (base / "etc").mkdir()
    (base / "hosts").touch()
    mount("--bind", base / "etc", "/etc/slurm")
    mount("--bind", base / "hosts", "/etc/hosts")


def _packages() -> list[Path]:
    """The folders of installed packages, some of which a virtual environment may share with another one (.pth)."""
    return [path for path in map(Path, sys.path) if path.name in ("site-packages", "dist-packages") and path.is_dir()]


def _interpreter() -> list[Path]:
    """The folders of the Python under the virtual environment; in /usr it shares the folder with the system.

    Debian's library has links to files below /etc.
    """
    if Path(sys.base_prefix) != Path("/usr"):
        return [Path(sys.base_prefix).resolve()]
    library = Path(os.__file__).parent
    linked = [path.resolve() for path in library.rglob("*") if path.is_symlink() and path.is_file()]
    return [library, Path(os.path.realpath(sys.executable)), *linked]


def _minimal(paths: Iterable[Path]) -> list[Path]:
    """Leave out what lies below another of the paths."""
    unique = list(dict.fromkeys(paths))
    return [path for path in unique if not any(other in path.parents for other in unique)]


def _enter_tree(tree: Path, visible: list[Path]) -> None:
    mount("--bind", tree, tree)
    # All that the tree itself gets are empty folders and files to mount on.
    mount("-t", "tmpfs", "-o", "mode=1777", "tmp", tree / "tmp")
    mount("--rbind", "/dev", tree / "dev")
    mount("-t", "proc", "proc", tree / "proc")
    mount("-t", "sysfs", "sysfs", tree / "sys")
    for path in visible:
        _bind(path, tree / path.relative_to("/"))
    _cover_links(Path(sys.executable), tree)
    os.chroot(tree)


def _cover_links(executable: Path, tree: Path) -> None:
    """Let the links to the interpreter lead to it in the tree, whose links of these names lead to its own Python.

    `.venv/bin/python` is one to `/usr/bin/python3` where a system's Python made it.
    """
    interpreter = executable.resolve()
    for link in _links(executable):
        shown = tree / link.relative_to("/")
        if not shown.resolve().is_relative_to(tree.resolve()):
            continue  # an absolute link of a folder that the tree shows; the next one is what it leads to
        if not shown.exists() or not shown.samefile(interpreter):
            _bind(interpreter, shown.resolve())


def _links(path: Path) -> list[Path]:
    """Return the links from a path to the file that it means, each as the one before it names it."""
    found = []
    while path.is_symlink():
        found.append(path)
        path = Path(os.path.normpath(path.parent / path.readlink()))
    return found


def _open_the_way(visible: list[Path]) -> None:
    """Let other users reach the visible paths below folders that are closed to them, such as /root.

    A closed folder is covered by an empty one that holds these paths alone.
    """
    closed: dict[Path, list[Path]] = {}
    for path in visible:
        for parent in reversed(path.parents):
            if not parent.stat().st_mode & stat.S_IXOTH:
                closed.setdefault(parent, []).append(path)
                break
    for folder, paths in closed.items():
        kept = {path: Path(f"/run/kept{str(path).replace('/', '-')}") for path in paths}
        for path, place in kept.items():
            _bind(path, place)
        mount("-t", "tmpfs", "-o", "mode=755", "cover", folder)
        for path, place in kept.items():
            _bind(place, path)


def _bind(source: Path, target: Path) -> None:
    """Show a folder or file at another place, which is made."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount("--bind", source, target)
