"""Finds the rank whose failure caused the others', and says so in one message."""

from __future__ import annotations

import signal
from typing import Any

from holmes_hpc.runs import RunFolder
from holmes_hpc.runs.files import is_full
from holmes_hpc.runs.process_limits import cpu_words, killed_words
from holmes_hpc.runs.starts import read_error

_HINTS = {
    "SIGKILL": killed_words,
    "SIGXCPU": cpu_words,
    "SIGBUS": lambda: " (a file that it had mapped became shorter, such as its data, or shared memory is full)",
}


class FailureReport:
    """Collects how ranks ended; a rank that was killed comes before one that lost its neighbour."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._ended: list[dict[str, Any]] = []
        self._messages: list[str] = []
        self.cause: str | None = None
        """Why the run was ended from outside."""
        self._tree = ""
        self._told: dict[int, dict[str, Any]] = {}

    def tree_ended(self, words: str) -> None:
        """Take what ended the processes above the ranks, "" where nothing did."""
        self._tree = words

    def ended_for(self, cause: str) -> None:
        """Take it that the run was ended from outside because of `cause`."""
        self.cause = cause

    def add(self, event: dict[str, Any]) -> None:
        """Take an event `ended` or `error` of a rank, or `failed` of the launcher."""
        if event["event"] == "failed":
            self._messages.append(str(event["message"]))
        elif event["event"] == "error":
            self._told[event["rank"]] = event["report"]
        else:
            self._ended.append(event)

    def message(self) -> str:
        """Return what failed first, on which rank and node, and where to read more."""
        if self.cause is not None:
            return self.cause
        if not self._folder.path.exists():
            return f"the run folder {self._folder.path} was removed while the run went on"
        if self._messages:
            return self._messages[0]
        if not self._ended:
            return self._without_a_word()
        causes = sorted(self._ended, key=self._rank_of_cause)
        return self._describe(causes[0])

    def _rank_of_cause(self, event: dict[str, Any]) -> int:
        """Order: killed; failed by itself; waited for another rank, which it names; only lost a neighbour."""
        if event["status"] < 0:
            return 0
        if event["status"] == 0:  # in the middle of its training, by what somebody called there
            return 1
        report = self._error(event["rank"])
        if report is None or report["type"] in ("NetworkError", "DistBackendError", "RuntimeError"):
            return 3
        return 2 if report["type"] == "HangError" else 1

    def _error(self, rank: int) -> dict[str, Any] | None:
        return read_error(self._folder, rank) or self._told.get(rank)

    def _without_a_word(self) -> str:
        logs = f"see {self._folder.path / 'logs'}"
        if self._tree:
            hint = next((words() for name, words in _HINTS.items() if name in self._tree), "")
            return f"{self._tree}{hint}, and all ranks ended with it; {logs}"
        return f"the processes of the run ended without a word; {logs}"

    def _describe(self, event: dict[str, Any]) -> str:
        who = f"rank {event['rank']} on node {event['node']} (slot {event['slot']})"
        log = f"log: {self._folder.log_path(event['rank'])}"
        if event["status"] < 0:
            name = signal.Signals(-event["status"]).name
            hint = _HINTS[name]() if name in _HINTS else ""
            return f"{who} was ended by {name}{hint}; {log}"
        report = self._error(event["rank"])
        if report is None and is_full(self._folder.path):
            return (f"{who} ended, and could not write why: the disk or the quota of {self._folder.path} is full; free "
                    "space there or choose another place with run.folder=PATH")
        if report is None:
            early = " before its training was over" if event["status"] == 0 else ""
            return f"{who} ended with status {event['status']}{early}; {log}"
        if report["type"] == "HangError" or report.get("names_rank"):
            return str(report["message"])
        if report.get("ours"):
            return f"{report['message']} [{who}]"
        return f"{who} failed: {report['type']}: {report['message']}; {log}"
