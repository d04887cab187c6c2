"""Job states: Slurm's long and short words, cut ones, and what they mean for who waits for the job."""

from __future__ import annotations

from collections.abc import Iterable

_SHORT = {"BF": "BOOT_FAIL", "CA": "CANCELLED", "CD": "COMPLETED", "CF": "CONFIGURING", "CG": "COMPLETING",
          "DL": "DEADLINE", "F": "FAILED", "NF": "NODE_FAIL", "OOM": "OUT_OF_MEMORY", "PD": "PENDING",
          "PR": "PREEMPTED", "R": "RUNNING", "RD": "RESV_DEL_HOLD", "RF": "REQUEUE_FED", "RH": "REQUEUE_HOLD",
          "RQ": "REQUEUED", "RS": "RESIZING", "RV": "REVOKED", "S": "SUSPENDED", "SE": "SPECIAL_EXIT",
          "SI": "SIGNALING", "SO": "STAGE_OUT", "ST": "STOPPED", "TO": "TIMEOUT"}
STATES: tuple[str, ...] = tuple(_SHORT.values())

_FINAL = frozenset({"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
                    "PREEMPTED", "REVOKED", "TIMEOUT"})
_REQUEUED_BY_SLURM = frozenset({"BOOT_FAIL", "NODE_FAIL", "PREEMPTED"})
# Of a job's components the one furthest from a good end speaks for the job.
_WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
UNKNOWN = "UNKNOWN"


def read_job_state(text: str) -> str:
    """Return the state in Slurm's long word.

    `CANCELLED by 1000` is CANCELLED, `OUT_OF_ME+` OUT_OF_MEMORY, `PD` PENDING; UNKNOWN for an empty text.
    """
    words = text.split()
    if not words:
        return UNKNOWN
    word = words[0].upper()
    if word.endswith("+"):
        word = word.rstrip("+")
        return next((state for state in STATES if state.startswith(word)), word)
    return _SHORT.get(word, word)


def is_final(state: str, requeue: bool = False) -> bool:
    """Return whether a job in this state has ended for good.

    `requeue`: Slurm puts the job back into the queue when it loses a node or is preempted, so these are no end.
    """
    return state in _FINAL and not (requeue and state in _REQUEUED_BY_SLURM)


def combined_state(states: Iterable[str]) -> str:
    """Return the state of a job from those of its components (or array tasks): what still lives comes first.

    RUNNING where one runs, else PENDING where one waits, else the first that is not COMPLETED.
    """
    known = list(states)
    if not known:
        return UNKNOWN
    living = [state for state in known if not is_final(state)]
    running = [state for state in living if state not in _WAITING]
    candidates = running or living or [state for state in known if state != "COMPLETED"] or known
    return "RUNNING" if "RUNNING" in candidates else candidates[0]
