"""Find run folders and read what lies in them, whether the run has ended, still runs, or was killed.

The files are read as plain JSON rather than as `values.Plan`, so that runs of other versions can be compared.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis import shapes
from analysis.damages import all_possible, damages
from analysis.kept_steps import are_kept, keep_steps, kept_steps, place_of
from analysis.parsing import Ahead
from analysis.shapes import shaped
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.foreign import ForeignError, parse_object, read_end, read_json, read_yaml, whole_number
from holmes_hpc.paths import at_home, is_listed, unreadable
from holmes_hpc.quoting import one_line
from holmes_hpc.runs import find
from holmes_hpc.runs.find import SWEEP_FILE
from holmes_hpc.runs.job import job_ranks
from holmes_hpc.runs.metrics import MOST_LINES_BYTES, newest_actions
from holmes_hpc.runs.sweep_record import RECORD

RUN_HELP = ("a run folder, finished or running, a folder that holds runs, such as runs/mixed, a job id, or a run's id "
            "or name (all runs of that name)")
"""What a RUN of the commands may be."""
METRICS = "metrics.jsonl"
RUN_FILES = ("plan.json", METRICS, "job.json")
"""A folder that holds one of these is a run folder."""

_RUN_ID = re.compile(r"\d{8}-\d{6}-[a-z0-9]{4}")
"""Names of run folders, and of those of sweeps, which hold no run themselves."""

_SWEEP_FILES = {SWEEP_FILE, RECORD}
"""What tells the folder of a sweep from a run's: Slurm's runs of it, or Hydra's record."""

logger = logging.getLogger(__name__)

Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What a run folder holds; a file that does not exist yet is empty here."""

    folder: Path
    name: str
    config: Record
    plan: Record
    job: Record
    result: Record
    metrics: list[Record]
    damages: tuple[str, ...] = ()
    """What is wrong with the folder, in words."""

    def places(self) -> dict[int, Record]:
        """Return rank -> `node` (its slot until the plan is bound), `slot`, `fabric`, `gpu`."""
        nodes = {entry["rank"]: entry.get("node") for entry in job_ranks(self.job)}
        return {
            place["rank"]: {
                "node": place.get("node") or nodes.get(place["rank"]) or place.get("slot"),
                "slot": place.get("slot"),
                "fabric": place.get("fabric"),
                "gpu": place.get("gpu"),
            }
            for place in job_ranks(self.plan)
        }

    def timeline(self) -> dict[int, list[Record]]:
        """Return rank -> its recorded actions, in file order, each action of a step once (the newest)."""
        files = (self.folder / "ranks").glob("rank-*.jsonl")
        found = {file.stem.removeprefix("rank-"): file for file in files}
        return {
            rank: newest_actions(read_lines(found[str(rank)]))
            for rank in sorted(int(text) for text in found if text.isdigit())
        }


def find_runs(*paths: str | os.PathLike[str]) -> list[Path]:
    """Return the run folders that `paths` are, or that lie anywhere below them, each once.

    Links below a path are not followed (`slurm-<job id>` links to a folder that is found anyway). Raises
    ConfigurationError for a path that does not exist, may not be read or holds no run.
    """
    if not paths:
        raise ConfigurationError(
            "no run was named: give run folders, or folders that hold runs, such as runs/mixed"
        )
    folders: dict[Path, None] = {}
    for path in map(Path, paths):
        if not is_listed(path):
            raise ConfigurationError(
                f"{path}: no such folder; name a run folder (runs/<name>/<id>) or a folder that holds runs"
            )
        found = _runs_below(path.resolve())
        if not found:
            raise ConfigurationError(
                f"{path}: no run here or in the folders below; looked for a folder with one of "
                f"{', '.join(RUN_FILES)}; name a run folder (runs/<name>/<id>) or a folder that holds runs"
            )
        folders.update(dict.fromkeys(found))
    return list(folders)


def named_runs(texts: Sequence[str], base: Path) -> list[Path]:
    """Return the run folders that a command's words name: folders as `find_runs` takes them, else a job id, a run's id
    or name (all runs of that name) below `base`, as `holmes jobs` takes them.

    Raises ConfigurationError for a word that names no run, and for folders that may not be read.
    """
    folders: dict[Path, None] = {}
    for text in texts:
        path = at_home(text)
        here = _runs_below(path.resolve()) if is_listed(path) else []
        folders.update(dict.fromkeys(here or _of_name(text, base)))
    return list(folders)


def _of_name(text: str, base: Path) -> list[Path]:
    try:
        return [run.path.absolute() for run in find.find_runs([text], base)]
    except ConfigurationError:
        if is_listed(at_home(text)):
            return find_runs(at_home(text))  # says what was looked for in it
        raise


def read_runs(*paths: str | os.PathLike[str]) -> list[Run]:
    """Read every run that `find_runs` finds. Run names are made unique by the folder where two are alike."""
    folders = find_runs(*paths)
    files = [folder / METRICS for folder in folders]
    with Ahead([path for path in files if not are_kept(path)]) as ahead:
        found = [read_run(folder, ahead) for folder in folders]
    names = [run.name for run in found]
    return [
        Run(**{**vars(run), "name": one_line(f"{run.name} ({run.folder})")}) if names.count(run.name) > 1 else run
        for run in found
    ]


def read_run(folder: Path, ahead: Ahead | None = None) -> Run:
    """Read one run folder. A file that is no JSON or YAML is logged and taken as empty.

    `ahead` parses metrics meanwhile, those of the folders that are read next.

    Raises ConfigurationError for one that may not be read.
    """
    try:
        return _read_run(folder, ahead)
    except OSError as error:
        raise unreadable(error) from error


def _read_run(folder: Path, ahead: Ahead | None) -> Run:
    wrong: dict[str, set[str]] = {name: set() for name in ("config.yaml", "plan.json", "metrics.jsonl")}
    config = shaped(_read_config(folder / "config.yaml"), shapes.CONFIG, wrong["config.yaml"])
    name = (config.get("run") or {}).get("name") or (config.get("cluster") or {}).get("name")
    if not isinstance(name, str) or "$" in name:
        name = folder.parent.name
    objects = {name: _in_lines(_read_object(folder / name)) for name in ("plan.json", "job.json", "result.json")}
    objects["plan.json"] = shaped(objects["plan.json"], shapes.PLAN, wrong["plan.json"])
    dropped = wrong["metrics.jsonl"]
    path = folder / METRICS
    place = place_of(path) if objects["result.json"] else None
    parsed = ahead.records(path) if ahead is not None else None
    steps = kept_steps(place) if parsed is None else None
    if steps is None:
        records, torn = (parsed, False) if parsed is not None else _lines(path)
        steps = all_possible(_newest_steps(records), dropped)
        steps = [record if shapes.STEP.keys().isdisjoint(record) else shaped(record, shapes.STEP, dropped)
                 for record in steps]
        if not (torn or dropped):
            keep_steps(place, steps)
    return Run(
        folder=folder,
        name=one_line(f"{name}/{folder.name}"),
        config=config,
        plan=objects["plan.json"],
        job=objects["job.json"],
        result=objects["result.json"],
        metrics=steps,
        damages=damages(folder, {"config.yaml": config, **objects}, wrong),
    )


def read_lines(path: Path) -> list[Record]:
    """Return the objects of a JSON-lines file, [] when there is none.

    The last line of a running or killed run may be torn and is left out; a torn line further up (the run was
    requeued after a kill) is left out too, and logged.
    """
    return _lines(path)[0]


def _lines(path: Path) -> tuple[list[Record], bool]:
    """Return what `read_lines` does, and whether a line was torn."""
    if not path.is_file():
        return [], False
    lines = read_end(path, MOST_LINES_BYTES).splitlines()
    if path.stat().st_size > MOST_LINES_BYTES:
        logger.warning("%s: only its last %d MiB are read", path, MOST_LINES_BYTES >> 20)
        del lines[:1]
    records, torn = [], False
    for number, line in enumerate(lines, start=1):
        record = parse_object(line)
        if record is not None:
            records.append(record)
        elif line.strip():
            torn = True
            if number < len(lines):
                logger.warning("%s: line %d is torn and left out", path, number)
    return records, torn


def _runs_below(top: Path) -> list[Path]:
    found = []
    for folder, subfolders, files in os.walk(top):
        if any(name in files for name in RUN_FILES):
            found.append(Path(folder))
            subfolders.clear()
        elif _RUN_ID.fullmatch(Path(folder).name) and not _SWEEP_FILES & set(files):
            logger.warning("%s: an empty run folder (none of %s), left out", folder, ", ".join(RUN_FILES))
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
    return found


def _newest_steps(records: list[Record]) -> list[Record]:
    """Drop the steps that a resumed run did again: a step replaces itself and all later ones before it."""
    steps: list[Record] = []
    for record in records:
        step = record.get("step")
        if whole_number(step) is None:
            continue
        while steps and steps[-1]["step"] >= step:
            steps.pop()
        steps.append(record)
    return steps


def _read_object(path: Path) -> Record:
    if not path.is_file():
        return {}
    try:
        value = read_json(path)
    except ForeignError as error:
        _raise_if_refused(error)
        logger.warning("%s; taken as missing", error)
        return {}
    return value if isinstance(value, dict) else {}


def _in_lines(value: Any) -> Any:
    """Return a value whose texts steer no terminal and no picture."""
    if isinstance(value, str):
        return "\n".join(map(one_line, value.split("\n")))
    if isinstance(value, dict):
        return {_in_lines(key): _in_lines(item) for key, item in value.items()}
    return [_in_lines(item) for item in value] if isinstance(value, list) else value


def _read_config(path: Path) -> Record:
    if not path.is_file():
        return {}
    try:
        value = read_yaml(path)
    except ForeignError as error:
        _raise_if_refused(error)
        logger.warning("%s; taken as missing", error)
        return {}
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def _raise_if_refused(error: ForeignError) -> None:
    """Raise the system's own error where it refused to read: the user must know, and get the right."""
    if isinstance(error.__cause__, OSError):
        raise error.__cause__
