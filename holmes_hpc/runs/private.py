"""Files for the user alone, whatever the umask, and folders that nobody else may write."""

from __future__ import annotations

import grp
import os
import pwd
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from holmes_hpc.errors import ConfigurationError

SECRET_BYTES = 32
PRIVATE_MODE = 0o600
PRIVATE_NAMES = ("config.yaml", "job.json", "rendezvous.json", "code.diff")
"""Files of a run that are the user's alone also where the run is open to a group: settings in clear, processes, where
ranks meet, changes of the code."""


class ExposedError(ConfigurationError):
    """A file or folder that should be the user's alone is open to others."""


def create_file(path: Path, mode: int = 0o664) -> int:
    """Make a new file and return its descriptor for writing; it is never one that was there, nor a link's target.

    `mode` is lessened by the umask, but for PRIVATE_MODE, which holds as it is; without one others may not write it,
    whatever the umask. Raises OSError.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    if mode == PRIVATE_MODE:
        os.fchmod(descriptor, mode)
    return descriptor


def umask() -> int:
    """Return the umask of this process, which is not changed for it: files of other threads would be open meanwhile."""
    found = re.search(r"^Umask:\s*([0-7]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1], 8) if found else 0


def keep_others_out(path: Path) -> None:
    """Let nobody but the user and the group write a file that was made by another's code. Raises OSError."""
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o002)


def replace_file(path: Path, content: str | bytes) -> None:
    """Write `content` in place of `path`: readers see the old file or the new one, whole, and a link is not followed.

    One of PRIVATE_NAMES is for the user alone, whatever the umask. Raises OSError.
    """
    temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(8)}")
    try:
        mode = PRIVATE_MODE if path.name in PRIVATE_NAMES else 0o664
        with os.fdopen(create_file(temporary, mode), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def put_file(path: Path, content: str | bytes) -> None:
    """Write `content` where a user wants it: what is there and no file, such as /dev/stdout, is written to.

    Anything else is replaced as by `replace_file`. Raises OSError.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    else:
        replace_file(path, content)


def own_folder(path: Path) -> None:
    """Make a folder for the user alone, or take the one that is there, where nobody else may write it.

    Raises OSError, ExposedError for another one: who knows its name could have put it there.
    """
    try:
        path.mkdir(0o700)
    except FileExistsError:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode):
            raise
        if status.st_uid != os.geteuid() or may_be_written_by_others(status):
            raise ExposedError(f"{path} is there already, and others may write it (mode "
                               f"{stat.S_IMODE(status.st_mode):o}, user {_user(status.st_uid)}), who could have put "
                               "their own files there; remove it, or write to a folder of your own") from None


def make_secret(path: Path) -> bytes:
    """Make a secret of 256 bits, leave it in a new file that the user alone may read, and return it.

    An older file there is replaced. Raises OSError where it cannot be written, ExposedError where the file system keeps
    no modes.
    """
    path.unlink(missing_ok=True)
    secret = secrets.token_bytes(SECRET_BYTES)
    with os.fdopen(create_file(path, PRIVATE_MODE), "wb") as file:
        file.write(secret)
    return read_secret(path)


def read_secret(path: Path) -> bytes:
    """Return the secret in a file. Raises OSError, ExposedError where others may read it or it is not this user's."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise ExposedError(f"{path} holds the secret of this run and is not its user's alone (mode "
                               f"{stat.S_IMODE(status.st_mode):o}, user {status.st_uid}); set run.folder to a place on "
                               "a file system that keeps modes, in a folder of your own")
        secret = file.read(SECRET_BYTES + 1)
    if len(secret) != SECRET_BYTES:
        raise ExposedError(f"{path} holds no secret of {SECRET_BYTES} bytes; start the run again")
    return secret


def open_folder(path: Path, *, to_group: bool) -> None:
    """Let the user alone into a folder, or the group too, but not to write; whatever the umask. Raises OSError."""
    path.chmod(0o750 if to_group else 0o700)


def check_own(folder: Path) -> None:
    """Check that nobody else could have written a run's folder and configuration, whose plug-ins run as this user.

    They belong to this user or to root, and nobody else may write them, but for a group of the user's own. Raises
    ExposedError.
    """
    for path in (folder, folder / "config.yaml"):
        try:
            status = path.stat() if path == folder else path.lstat()
        except OSError:
            continue  # whoever reads it says so
        if status.st_uid not in (os.geteuid(), 0):
            raise ExposedError(f"{path} belongs to another user ({_user(status.st_uid)}), and what its settings name "
                               "would run as you; use a run folder of your own (run.folder)")
        mode = stat.S_IMODE(status.st_mode)
        if may_be_written_by_others(status):
            raise ExposedError(f"{path} may be written by others (mode {mode:o}), and what its settings name would run "
                               f"as you; look whether it is as you left it, then `chmod go-w {path}`")


def exposed(checkpoint: Path, files: Iterable[Path]) -> str | None:
    """Return by which folder or file others could have changed a checkpoint, in words; None where they could not.

    The checkpoint, its `files`, and the folders that make it part of a run may be written by their owner and by a group
    of the user's own; a folder above by whom it may, unless anybody could put another one in its place. What lies in a
    folder that nobody else may enter has any modes: a umask of 002 left them so.
    """
    checkpoint = checkpoint.resolve()
    run = [checkpoint, *(each for each in checkpoint.parents[:2] if _is_of_run(each))]
    for path in (*reversed(run), *files):
        try:
            status = path.stat()
        except OSError:
            continue  # whoever reads it says so
        if may_be_written_by_others(status):
            return _exposed_words(path, status)
        if stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o011 and status.st_uid in (os.geteuid(), 0):
            break
    for path in run[-1].parents:
        status = path.stat()
        if status.st_mode & 0o002 and not status.st_mode & stat.S_ISVTX:
            return _exposed_words(path, status)
    return None


def may_be_written_by_others(status: os.stat_result) -> bool:
    """Say whether somebody else than its owner may write a file or folder, but for a group of this user's own."""
    return bool(status.st_mode & 0o002 or (status.st_mode & 0o020 and not _is_own_group(status.st_gid)))


def _is_of_run(path: Path) -> bool:
    return path.name == "checkpoints" or (path / "checkpoints").is_dir()


def _exposed_words(path: Path, status: os.stat_result) -> str:
    return (f"{path} may be written by others (mode {stat.S_IMODE(status.st_mode):o}), who could have changed the "
            f"checkpoint: look whether it is as you left it, then `chmod go-w {path}`")


def is_own(folder: Path) -> bool:
    """Say whether nobody else could have written a folder, as `check_own` checks."""
    try:
        check_own(folder)
    except ExposedError:
        return False
    return True


def _is_own_group(group: int) -> bool:
    """Say whether a group is that of this user alone, as many systems give each user one of his name."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return group == user.pw_gid and found.gr_name == user.pw_name and set(found.gr_mem) <= {user.pw_name}


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)
