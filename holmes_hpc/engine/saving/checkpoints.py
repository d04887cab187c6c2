"""The checkpoints of a run: which state is saved when, and where a run takes up again."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holmes_hpc import __version__
from holmes_hpc.architecture import Architecture
from holmes_hpc.checkpoint.entries import Entry
from holmes_hpc.checkpoint.index import Index, read_index
from holmes_hpc.checkpoint.model import check_model, model_description, states_of
from holmes_hpc.checkpoint.naming import candidates, looking_again, newest_first, tidy
from holmes_hpc.checkpoint.order import ANY, doubts, next_serial
from holmes_hpc.checkpoint.reading import fill
from holmes_hpc.comm.groups import Communicator
from holmes_hpc.data import Dataset
from holmes_hpc.engine.saving.course import course_words, schedule_end
from holmes_hpc.engine.saving.resuming import load_newest
from holmes_hpc.engine.saving.saved_state import SavedState
from holmes_hpc.engine.saving.saver import Saver, Say
from holmes_hpc.engine.sharing import share_texts
from holmes_hpc.errors import CheckpointError
from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.identity import identity, make_identity
from holmes_hpc.values import Plan

_TRAIN_SETTINGS = ("seed", "steps", "global_batch_size", "precision")
_OPTIMIZER_SETTINGS = ("name", "lr", "min_lr", "warmup_steps", "decay_steps", "beta1", "beta2", "epsilon", "momentum",
                       "weight_decay", "clip_grad_norm", "schedule", "cooldown_steps", "decayed")


@dataclass(frozen=True)
class Saved:
    """What a checkpoint is of: the run's settings, and the `parts` of its state by name, the optimizer first."""

    plan: Plan
    architecture: Architecture
    dataset: Dataset
    train: Any
    optimizer: Any
    parts: Mapping[str, SavedState]


class Checkpoints:
    """Resumes, and saves every `train.checkpoint_every` steps and after the last one.

    All ranks call every method at the same points of the training; a failed save shows at a later one, at the latest
    in `finish`.
    """

    def __init__(self, saved: Saved, communicator: Communicator, folder: RunFolder, say: Say) -> None:
        self._saved, self._communicator, self._folder, self._say = saved, communicator, folder, say
        self._every = saved.train.checkpoint_every
        self._loading: Mapping[str, SavedState] = {}
        self._before: Mapping[str, Any] = {}
        self.schedule_end = schedule_end(saved.optimizer, saved.train)
        """the step at which the schedule of the learning rate ends"""
        self._newest, self._serial = 0, 1
        self._loaded: tuple[Path, Index] | None = None
        self._identity: str | None = None
        token = share_texts(secrets.token_hex(4), communicator)[0]
        self._saver = Saver(folder.checkpoints, communicator, token=token, keep=saved.train.keep_checkpoints,
                            goes_on=saved.train.on_save_error == "continue", say=say,
                            texts={"plan.json": saved.plan.to_json()}, hashed=bool(saved.train.checkpoint_sha256))

    def resume(self) -> int:
        """Take up the newest checkpoint that `train.resume` allows; return its step, 0 for a fresh start.

        Raises CheckpointError when there are checkpoints and none can be used, or none can be written.
        """
        if self._every:
            self._saver.probe()
        if self._communicator.rank == 0:
            self._identity = identity(self._folder)
        found = self._candidates() if self._communicator.rank == 0 else []
        self._newest = load_newest(found, self._load, self._communicator, self._say)
        if self._newest:
            for part in self._loading.values():
                part.loaded()
            self._say_doubts()
            self._say_differences()
            self.schedule_end = schedule_end(self._saved.optimizer, self._saved.train, self._before)
        if self._every and self._communicator.rank == 0:
            self._serial = next_serial(self._folder.checkpoints)
            self._identity = make_identity(self._folder)
        return self._newest

    def after_step(self, step: int) -> None:
        """Bring a save on, or begin one where one is due. Raises CheckpointError (see `train.on_save_error`)."""
        if self._every and (step % self._every == 0 or step == self._saved.train.steps):
            self.save(step)
        else:
            self._saver.poll()

    def save(self, step: int) -> None:
        """Begin to save the state after `step`."""
        entries = [entry for part in self._saved.parts.values() for entry in part.state_entries()]
        self._saver.save(step, entries, self._extra(step))
        self._newest, self._serial = step, self._serial + 1

    def stop(self, step: int) -> None:
        """Save the state after `step` even where none is due, and wait until it is complete. Raises as `after_step`."""
        if step > self._newest:
            self.save(step)
        self.finish()

    def finish(self) -> None:
        """Wait until the last checkpoint is complete. Raises as `after_step`."""
        self._saver.finish()

    def _candidates(self) -> Iterable[Path]:
        """Return what to resume from, the best first: this run's own checkpoints, then those of `train.resume`."""
        try:
            for path in tidy(self._folder.checkpoints):
                self._say(f"checkpoint {path} was whole when its writer ended, and has its name now")
        except OSError as error:
            self._say(f"WARNING: what ended writers left in {self._folder.checkpoints} cannot be cleared away: "
                      f"{error.strerror or error}")
        return looking_again(self._look)

    def _look(self) -> list[Path]:
        wanted = self._saved.train.resume
        if wanted == "never":
            return []
        own = newest_first(self._folder.checkpoints)
        return own if wanted == "auto" else own + candidates(Path(wanted))

    def _load(self, path: Path) -> int:
        index = read_index(path)
        check_model(index, self._saved.architecture)
        if self._communicator.rank == 0:
            index.check_texts(path)
        states = states_of(index)
        present = {name: part for name, part in self._saved.parts.items() if name in states}
        if not {"model", "optimizer"} <= set(present):
            raise CheckpointError("it is foreign: it holds no model and optimizer")
        for name, part in present.items():
            part.load_state(states[name])
        entries: list[Entry] = [entry for part in present.values() for entry in part.state_entries()]
        fill(path, index, entries)
        self._loading, self._before, self._loaded = present, index.extra, (path, index)
        return index.step

    def _say_doubts(self) -> None:
        if self._loaded is None or self._communicator.rank != 0:
            return
        path, index = self._loaded
        if index.manifest:
            self._say(f"the manifest of {path} has the SHA-256 {index.manifest}")
        if self._saved.train.checkpoint_sha256 and not index.is_hashed:
            self._say(f"WARNING: {path} has no SHA-256, although train.checkpoint_sha256=true: it was saved without, "
                      "so only its CRC-32 are checked, which show damage and no forgery; checkpoints from here on have "
                      "them")
        for doubt in doubts(path, index, self._identity if path.parent == self._folder.checkpoints else ANY):
            self._say(f"WARNING: {path}: {doubt}")

    def _say_differences(self) -> None:
        if self._communicator.rank != 0:
            return
        before = self._before.get("settings")
        differences = list(_differences(before if isinstance(before, dict) else {}, self._settings()))
        if differences:
            self._say("since this checkpoint was made, settings have changed, so the run goes on otherwise than it "
                      f"would have: {', '.join(differences)}")
        for words in course_words(self._newest, self._before, self._saved.optimizer, self._saved.train):
            self._say(words)

    def _extra(self, step: int) -> dict[str, Any]:
        return {
            "holmes_hpc": __version__,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "run": str(self._folder.path),
            **({"identity": self._identity} if self._identity else {}),
            "serial": self._serial,
            "world_size": self._saved.plan.world_size,
            "data": {"seed": self._saved.train.seed, "next_step": step + 1},
            "settings": self._settings(),
            "schedule_end": self.schedule_end,
            "model": model_description(self._saved.architecture),
            "parts": {name: part.state() for name, part in self._saved.parts.items()},
        }

    def _settings(self) -> dict[str, Any]:
        """Return the settings that the course of the training depends on."""
        saved = self._saved
        settings = {f"train.{name}": saved.train[name] for name in _TRAIN_SETTINGS}
        settings |= {f"optimizer.{name}": saved.optimizer[name] for name in _OPTIMIZER_SETTINGS}
        data = saved.dataset
        settings |= {"data.order": data.order,
                     "the shares of data.sources": [round(float(each), 6) for each in data.weights],
                     "data.packing": [source.packing for source in data.sources]}
        return settings | {"the data's fingerprint": data.fingerprint()}


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name, value in now.items():
        if name in before and before[name] != value:
            yield f"{name} was {before[name]} and is {value}"
