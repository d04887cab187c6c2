"""What the store holds, and what it answers: requests and answers are JSON, values of bytes stand in Latin-1."""

from __future__ import annotations

from typing import Any


class Values:
    """The keys and values of a store. `changed` says that a key was written since it was last set to false."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}
        self.changed = False

    @staticmethod
    def awaited(request: Any) -> tuple[list[str], float]:
        """Return the keys that a request waits for, and for how many seconds at most."""
        name, *arguments = request
        return (arguments[0], float(arguments[1])) if name in ("get", "wait") else ([], 0.0)

    def has(self, keys: list[str]) -> bool:
        """Say whether every one of the keys is held."""
        return all(key in self._held for key in keys)

    def answer(self, request: Any) -> Any:
        """Return the answer to a request. Raises ValueError for one that is not known."""
        name, *arguments = request
        match name:
            case "get":
                keys = arguments[0]
                return [self._held[key].decode("latin-1") for key in keys] if self.has(keys) else None
            case "wait" | "check":
                return self.has(arguments[0])
            case "set":
                for key, value in zip(*arguments, strict=True):
                    self._put(key, value.encode("latin-1"))
                return True
            case "append":
                key, value = arguments
                self._put(key, self._held.get(key, b"") + value.encode("latin-1"))
                return True
            case "add":
                key, amount = arguments
                total = int(self._held.get(key, b"0")) + amount
                self._put(key, str(total).encode())
                return total
            case "compare_set":
                return self._compare_set(*arguments)
            case "delete":
                return self._held.pop(arguments[0], None) is not None
            case "keys":
                return sorted(self._held)
        raise ValueError(f"unknown request {name!r}")

    def _compare_set(self, key: str, expected: str, desired: str) -> str:
        """Write a value where the old one is as expected, or none is held and none was; return what is held then."""
        held = self._held.get(key)
        if (held is None and not expected) or (held is not None and held == expected.encode("latin-1")):
            self._put(key, desired.encode("latin-1"))
            return desired
        return expected if held is None else held.decode("latin-1")

    def _put(self, key: str, value: bytes) -> None:
        self._held[key] = value
        self.changed = True
