"""Tokens of a kind of data that a plug-in added."""

from __future__ import annotations

from typing import Any

import numpy

from holmes_hpc.data.settings import SourceSettings
from holmes_hpc.data.tokens import Tokens
from holmes_hpc.errors import DataError, HolmesError
from holmes_hpc.values.sources import SourceKind


def read_added(settings: SourceSettings, kind: SourceKind) -> Tokens:
    """Return the tokens that the plug-in's function reads. Raises DataError where it fails or returns none."""
    try:
        array = kind.read(settings)
    except HolmesError:
        raise
    except Exception as error:
        raise DataError(f"{settings.label}: the plug-in that added {settings.key('name')}={settings.kind} failed: "
                        f"{type(error).__name__}: {error}. Mend it, or the data.") from error
    if not _is_tokens(array):
        found = f"{array.dtype} of shape {array.shape}" if isinstance(array, numpy.ndarray) else type(array).__name__
        raise DataError(f"{settings.label}: the plug-in that added {settings.key('name')}={settings.kind} returned "
                        f"{found}, and tokens are one numpy array of whole numbers in one dim. Mend the plug-in.")
    return Tokens(array, kind.vocab_size)


def _is_tokens(array: Any) -> bool:
    return isinstance(array, numpy.ndarray) and array.ndim == 1 and array.dtype.kind in "ui"
