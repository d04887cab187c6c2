"""Looks at paths that a user names: what lies there, and one message where the system does not let us see.

`Path.exists` and its like raise for a folder that may not be searched and for names that are too long, and take a loop
of links for nothing, so paths from outside are looked at here.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from pathlib import Path

from holmes_hpc.errors import ConfigurationError

MOST_NAME_BYTES = 255
"""Bytes of a file's name on Linux (NAME_MAX in linux/limits.h)."""

_VARIABLE = re.compile(r"\$(\w+|\{\w+\})", re.ASCII)
_REMEDIES = {
    errno.EACCES: "get the right to read it, or name another one",
    errno.ENAMETOOLONG: f"a name has at most {MOST_NAME_BYTES} bytes; name a shorter one",
    errno.ELOOP: "its links lead to themselves; mend them, or name another one",
}


def at_home(path: Path | str, setting: str = "") -> Path:
    """Return a path whose `~` or `~USER` at the front is that home; one that begins otherwise stays as it is.

    Raises ConfigurationError for a user that the system does not know, where nobody says which home is one's own, and
    for a variable of a shell, which none has replaced; `setting` begins the message.
    """
    variable = _VARIABLE.search(str(path))
    if variable and not os.path.lexists(path):
        begin = f"{setting}=" if setting else ""
        raise ConfigurationError(f"{begin}{path}: {variable[0]} is no variable here, since no shell reads this text. "
                                 "Write ~ for your home, in a setting ${oc.env:NAME} for another variable, or the path "
                                 "in full.")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = Path(path).parts[0][1:]
        fact = f"there is no user {user} here" if user else "you have no home folder here (HOME is not set)"
        begin = f"{setting}=" if setting else ""
        raise ConfigurationError(f"{begin}{path}: {fact}; write the path in full, or with ./ in front where a name "
                                 "begins with ~") from None


def unreadable(error: OSError, path: Path | str | None = None, setting: str = "") -> ConfigurationError:
    """Return the error to raise where `path` (default: the one that `error` names) cannot be read.

    `setting` begins the message, such as `train.resume=/there`.
    """
    begin = f"{setting}: " if setting else ""
    remedy = _REMEDIES.get(error.errno or 0, "check it, or name another one")
    return ConfigurationError(f"{begin}{path or error.filename} cannot be read: {error.strerror or error}; {remedy}")


def is_folder(path: Path, setting: str = "") -> bool:
    """Say whether a folder lies at `path`. Raises ConfigurationError where that cannot be seen."""
    mode = _mode(path, setting)
    return mode is not None and stat.S_ISDIR(mode)


def is_file(path: Path, setting: str = "") -> bool:
    """Say whether a file lies at `path`. Raises ConfigurationError where that cannot be seen."""
    mode = _mode(path, setting)
    return mode is not None and stat.S_ISREG(mode)


def is_there(path: Path, setting: str = "") -> bool:
    """Say whether anything lies at `path`. Raises ConfigurationError where that cannot be seen."""
    return _mode(path, setting) is not None


def is_listed(folder: Path, setting: str = "") -> bool:
    """Say whether `folder` is one. Raises ConfigurationError where what lies in it cannot be seen."""
    if not is_folder(folder, setting):
        return False
    try:
        os.scandir(folder).close()
        os.stat(folder / ".")  # a folder may be listed and yet not be searched
    except OSError as error:
        raise unreadable(error, folder, setting) from None
    return True


def check_output(path: Path, option: str) -> None:
    """Check that a file may be made at `path`, or put in the place of a file that is there.

    `option` is what the path was given by. Raises ConfigurationError for what is no regular file: a device or a pipe
    that a file took the place of would be gone for everybody.
    """
    if not path.name:
        raise ConfigurationError(f"{option} {path}: it names no file; name one")
    if (is_there(path, option) and not is_file(path, option)) or path.absolute().parent == Path("/dev"):
        raise ConfigurationError(f"{option} {path}: it is no regular file, and none is put in its place; name "
                                 "a new file")


def try_to_write(path: Path, size_bytes: int) -> None:
    """Write and remove a nameless file in the folder `path`, or in the nearest one above it that exists.

    Raises OSError whose `filename` is where it was refused.
    """
    place = path
    for place in (path, *path.parents):
        try:
            os.stat(place)
            break
        except (FileNotFoundError, NotADirectoryError):
            if place.is_symlink():
                raise  # a folder cannot be made in place of a link to nothing
    try:
        with tempfile.TemporaryFile(dir=place) as trial:
            trial.write(bytes(size_bytes))
            trial.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(place)) from error


def _mode(path: Path, setting: str) -> int | None:
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(error, path, setting) from None


def cache_folder() -> Path | None:
    """Return where this user's commands keep what they can work out again (`XDG_CACHE_HOME`, else `~/.cache`).

    None where there is no home directory. The folder may not exist.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holmes_hpc"
    except RuntimeError:  # no HOME, and no entry for this user
        return None
