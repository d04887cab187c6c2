"""What matplotlib logs of its own folders, which is no matter of whoever draws a picture."""

from __future__ import annotations

import logging

_LOGGERS = ("matplotlib", "matplotlib.font_manager")
_OF_ITS_FOLDERS = ("mkdir -p failed for path", "%s is not a writable directory",
                   "Matplotlib created a temporary cache directory", "Matplotlib is building the font cache",
                   "Could not save font_manager cache")


def keep_quiet_of_folders() -> None:
    """Drop what matplotlib says where the home folder is missing or not writable: it then keeps its cache elsewhere.

    Everything else that it logs stays. Call it before matplotlib is imported, since importing is when it says so.
    """
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if _is_of_use not in logger.filters:
            logger.addFilter(_is_of_use)


def _is_of_use(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_OF_ITS_FOLDERS)
