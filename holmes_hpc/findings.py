"""What `doctor` finds: one line a finding, with the remedy."""

from __future__ import annotations

from dataclasses import dataclass

OK, NOTE, FAIL = "ok", "note", "FAIL"


@dataclass(frozen=True)
class Finding:
    """What was found: its state (`ok`, `note`: works with less, `FAIL`), the fact, and the remedy."""

    state: str
    subject: str
    fact: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f" -> {self.remedy}" if self.remedy else ""
        return f"{self.state:<5} {self.subject:<12} {self.fact}{remedy}"
