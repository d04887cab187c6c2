"""Hydra's record of a sweep, `multirun.yaml`: for its user alone, and without secrets, since no job reads it."""

from __future__ import annotations

from pathlib import Path

import yaml

from holmes_hpc.foreign import ForeignError, read_yaml
from holmes_hpc.redaction import redact_value
from holmes_hpc.runs.files import write_text_atomic
from holmes_hpc.runs.private import open_folder

RECORD = "multirun.yaml"


def close_record(folder: Path) -> None:
    """Let nobody else into a sweep's folder, made where it is missing, and hide the secrets in Hydra's record there.

    Raises OSError, and as `files.storage_error` says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    open_folder(folder, to_group=False)
    record = folder / RECORD
    if record.exists():
        try:
            text = yaml.safe_dump(redact_value(read_yaml(record)), sort_keys=False)
        except ForeignError as error:
            text = f"# {error}\n"
        write_text_atomic(record, text)
