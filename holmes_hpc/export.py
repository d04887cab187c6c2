"""`holmes export RUN --to FOLDER`: the model of a checkpoint as a folder that Hugging Face's libraries load."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holmes_hpc.architecture import Architecture
from holmes_hpc.config.folders import default_runs_folder
from holmes_hpc.errors import CheckpointError, ConfigurationError, HolmesError
from holmes_hpc.families import NotKnownError, configuration_of
from holmes_hpc.families.folder import CONFIGURATION
from holmes_hpc.foreign import read_json
from holmes_hpc.paths import at_home, is_listed
from holmes_hpc.program import report, run_program
from holmes_hpc.quoting import for_terminal
from holmes_hpc.runs.circumstances import no_weights
from holmes_hpc.runs.find import find_run, refuse_two
from holmes_hpc.words import size_words

KEPT = "pretrained"
DTYPES = ("float32", "bfloat16", "float16")
DEFAULT_SHARD_GIB = 5.0
_LEAST_SHARD_GIB, _MOST_SHARD_GIB = 1e-6, 1e9


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="holmes export", description=(
        "Write the model of a run's checkpoint as a Hugging Face folder: config.json, the tokenizer where the run has "
        "one, and weights as safetensors. Memory stays small, whatever the model's size."))
    parser.add_argument("run", metavar="RUN", help="a run folder, a checkpoint, a job id, or a run's id or name")
    parser.add_argument("--step", type=int, help="step of the checkpoint; default: the newest that can be used")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="the folder to write; it must be new")
    parser.add_argument("--dtype", choices=DTYPES, help="type of the weights; default: as the model came, else float32")
    parser.add_argument("--max-shard-gib", type=float, default=DEFAULT_SHARD_GIB, metavar="GIB",
                        help="largest file of weights, 2^30 bytes (%(default)s)")
    parser.add_argument("--folder", type=Path, default=default_runs_folder(), help="where runs lie (%(default)s)")
    arguments = parser.parse_args(argv)
    try:
        return _export(arguments)
    except HolmesError as error:
        return report("export", error)


def _export(arguments: argparse.Namespace) -> int:
    from holmes_hpc.checkpoint.exporting import UnfitValuesError
    from holmes_hpc.checkpoint.index import read_index
    from holmes_hpc.checkpoint.refusals import Refusals

    if not _LEAST_SHARD_GIB <= arguments.max_shard_gib <= _MOST_SHARD_GIB:
        raise ConfigurationError(f"--max-shard-gib {arguments.max_shard_gib:g}: expected a number from "
                                 f"{_LEAST_SHARD_GIB:g} up to {_MOST_SHARD_GIB:g}.")
    found, refused = _checkpoints(arguments.run, arguments.step, arguments.folder), Refusals()
    damaged = False
    for path in found:
        try:
            index = read_index(path)
            index.check_texts(path)
            damaged = True
            _export_one(path, index, arguments, str(refused))
            return 0
        except UnfitValuesError as error:
            raise CheckpointError(f"{path} cannot be exported: {error}.") from error
        except CheckpointError as error:
            refused.add(path.name, str(error))
    kind = CheckpointError if damaged else ConfigurationError
    raise kind(f"{found[0].parent}: no checkpoint there can be used. {refused}. "
               + ("Name another by --step N, or leave --step out." if arguments.step is not None else
                  "Copy one again from where it is whole, or train on from an earlier one."))


def _export_one(path: Path, index: Any, arguments: argparse.Namespace, refused: str) -> None:
    """Export a checkpoint; `refused` says why newer ones cannot be used. Raises CheckpointError where it is damaged."""
    from holmes_hpc.checkpoint.exporting import Export, write_export
    from holmes_hpc.engine.exported_texts import texts_of

    architecture = _architecture(index)
    run = path.parent.parent
    base = _base(run / KEPT)
    dtype = arguments.dtype or _type_of(base)
    try:
        family, configuration = configuration_of(architecture, base, dtype)
    except NotKnownError as error:
        raise ConfigurationError(f"{path}: {error}. Set model.family to one of them, or train a model that has one."
                                 ) from error
    texts = texts_of(run, run / KEPT)
    folder = at_home(arguments.to, "--to").absolute()
    bytes_written = write_export(Export(path, index, architecture, family, {**configuration, **texts.numbers},
                                        texts.files, dtype, int(arguments.max_shard_gib * 2**30)), folder, _say)
    if refused:
        sys.stderr.write(f"holmes export: WARNING: {path.name} is exported, since what is newer cannot be used: "
                         f"{for_terminal(refused)}; name another by --step\n")
    sys.stdout.write(f"{folder}: {family.model_type}, {architecture.parameter_count():,} parameters as {dtype}, "
                     f"{size_words(bytes_written)}, step {index.step} of {run}"
                     f"{for_terminal(texts.missing and f'; no tokenizer, since {texts.missing}')}\n")


def _checkpoints(run: str, step: int | None, base: Path) -> list[Path]:
    """Return the checkpoints that may be meant, the newest first. Raises ConfigurationError where there is none."""
    from holmes_hpc.checkpoint.naming import candidates

    path = Path(run)
    found = candidates(path) if is_listed(at_home(path)) else []
    if found:
        refuse_two(run, base)
    if not found:
        folder = find_run(run, base)
        found = candidates(folder.path)
        if not found and (why := no_weights(folder)):
            raise ConfigurationError(f"{run} has no checkpoint: {why}.")
    names = ", ".join(each.name for each in found)
    if step is not None:
        found = [each for each in found if each.name == f"step-{step:06d}"]
        if not found:
            raise ConfigurationError(f"--step {step}: {run} has no checkpoint of it; it has {names or 'none'}.")
    if not found:
        raise ConfigurationError(f"{run} has no checkpoint. Train with train.checkpoint_every=N, which saves after the "
                                 "last step too.")
    return found


def _architecture(index: Any) -> Architecture:
    from holmes_hpc.checkpoint.model import check_model, resolved

    recorded = resolved(index.extra.get("model", {}))
    try:
        architecture = Architecture(**recorded)
    except TypeError as error:
        raise CheckpointError("it does not say which model it is of, or is of a newer version of holmes_hpc") from error
    check_model(index, architecture)
    return architecture


def _base(kept: Path) -> Mapping[str, Any]:
    """Return the configuration that the model came with; {} for a model of our own."""
    if not (kept / CONFIGURATION).is_file():
        return {}
    found = read_json(kept / CONFIGURATION)
    if not isinstance(found, dict):
        raise ConfigurationError(f"{kept / CONFIGURATION} holds no object; copy it from the published model again.")
    return found


def _type_of(base: Mapping[str, Any]) -> str:
    name = str(base.get("dtype") or base.get("torch_dtype") or DTYPES[0]).removeprefix("torch.")
    return name if name in DTYPES else DTYPES[0]


def _say(done: int, of: int) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\rwrote {size_words(done)} of {size_words(of)} " + ("\n" if done >= of else ""))


if __name__ == "__main__":
    sys.exit(run_program("export", main))
