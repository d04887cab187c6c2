"""A look at the files of the data before anything is started, so that a wrong path costs no job and leaves no folder.

What the ranks would refuse when they open the data is refused here, as far as it shows without reading all of it: text
is not made into tokens, and what a plug-in reads is left to it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from holmes_hpc.architecture import Architecture
from holmes_hpc.data.encoding import BEGIN_BYTES, check_text
from holmes_hpc.data.formats import format_of
from holmes_hpc.data.megatron import MEGATRON
from holmes_hpc.data.recipes import recipe_of
from holmes_hpc.data.settings import MADE_HERE, SourceSettings, sources_of
from holmes_hpc.data.sources import Source, check_tokenizers, open_source
from holmes_hpc.data.text import text_files
from holmes_hpc.data.tokenizer import ByteTokenizer
from holmes_hpc.data.tokens import nearby, readable
from holmes_hpc.errors import ConfigurationError, DataError
from holmes_hpc.foreign import open_regular
from holmes_hpc.paths import try_to_write
from holmes_hpc.registry import SOURCES

_LOG = logging.getLogger(__name__)
_TRIAL_BYTES = 65536


def check_data_files(data_config: Any, architecture: Architecture) -> None:
    """Check the files that `config.data` names, unless `data.check_before_start` is false; say what is doubtful.

    Raises ConfigurationError with what the ranks would say, and how to leave the check to them.
    """
    if not data_config.check_before_start:
        return
    try:
        named = [settings for settings, _ in sources_of(data_config) if settings.kind not in SOURCES]
        sources = [_checked(settings, architecture) for settings in named]
        check_tokenizers(sources)
    except DataError as error:
        raise ConfigurationError(f"{error} Nothing was started. If the nodes see other files than this machine, set "
                                 "data.check_before_start=false: then the ranks check them.") from error
    for doubt in (doubt for source in sources for doubt in source.doubts(architecture.vocab_size)):
        _LOG.warning("%s", doubt)


def check_data_exists(data_config: Any) -> None:
    """Check that what `config.data` names is there, as a plan does, which reads none of it.

    Raises ConfigurationError, unless `data.check_before_start` is false.
    """
    if not data_config.check_before_start:
        return
    for settings, _ in sources_of(data_config):
        if settings.kind in SOURCES or not settings.path:
            continue
        path = settings.required_path
        whole = path if settings.kind != MEGATRON or path.suffix in (".bin", ".idx") else Path(f"{path}.idx")
        if not whole.exists():
            raise ConfigurationError(
                f"{settings.key('path')}={settings.path}: there is no {whole}{nearby(whole)}. The plan does not read "
                "it, and no run of it could start: name what exists, or set data.check_before_start=false if only the "
                "nodes see it.")


def _checked(settings: SourceSettings, architecture: Architecture) -> Source:
    if settings.kind in MADE_HERE:
        return _checked_text(settings, architecture)
    source = open_source(settings, architecture.vocab_size)
    source.check(architecture.sequence_length, architecture.vocab_size)
    return source


def _checked_text(settings: SourceSettings, architecture: Architecture) -> Source:
    """Check text or conversations; the source that is returned has tokens only where their number is known."""
    tokenizer = recipe_of(settings).tokenizer
    count = 0
    for file in text_files(settings):
        with readable(settings, file), open_regular(file) as stream:
            count += file.stat().st_size
            if format_of(settings, file) == "plain":
                check_text(settings, file, stream.read(BEGIN_BYTES))
    _check_cache(settings.cache)
    tokens = _Counted(0, count)
    border = count - int(count * settings.validation_fraction)
    source = Source(settings.label, tokens[:border], tokens[border:], tokenizer.vocab_size, tokenizer.identity)
    source.check_vocabulary_size(architecture.vocab_size)
    if isinstance(tokenizer, ByteTokenizer):
        source.check_length(architecture.sequence_length)
    return source


def _check_cache(cache: Path) -> None:
    try:
        try_to_write(cache.absolute(), _TRIAL_BYTES)
    except OSError as error:
        raise DataError(f"data.cache={cache} cannot be written: {error.filename}: {error.strerror}. Set data.cache to "
                        "a folder that you may write and that has room for the tokens.") from error


class _Counted:
    """Tokens of which the number is known and nothing else."""

    def __init__(self, begin: int, end: int) -> None:
        self._begin, self._end = begin, end

    def __len__(self) -> int:
        return self._end - self._begin

    def __getitem__(self, part: slice, /) -> _Counted:
        begin, end, _ = part.indices(len(self))
        return _Counted(self._begin + begin, self._begin + end)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise TypeError("these tokens are only counted")
