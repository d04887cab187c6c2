"""Why the checkpoints of a folder cannot be used, in few words. Needs no torch."""

from __future__ import annotations


class Refusals:
    """Collects checkpoints that were refused; a reason that holds for several is kept once, with their names."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}

    def __bool__(self) -> bool:
        """Say whether any was refused."""
        return bool(self._names)

    def add(self, name: str, reason: str) -> str:
        """Take a refused checkpoint; return both in words, which do not repeat a reason that was there before."""
        known = self._names.get(reason)
        self._names.setdefault(reason, []).append(name)
        return f"{name}: {reason}" if known is None else f"{name}: for the same reason as {known[0]}"

    def __str__(self) -> str:
        """Return all of them, in the order of their first."""
        return ". ".join(f"{', '.join(names)}: {reason}" for reason, names in self._names.items())
