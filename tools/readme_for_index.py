"""README.md as a package index shows it, which has neither the files nor the pictures beside it.

A hook of hatchling, which reads pyproject.toml: with `Source` among the project's URLs relative links and pictures lead
there; without, links become the names of the files in the source distribution, and pictures what they show.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

try:
    from hatchling.metadata.plugin.interface import MetadataHookInterface
except ImportError:  # only whoever builds the package needs hatchling
    MetadataHookInterface = object

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?://|mailto:)([^)\s#]*)(#[^)\s]*)?\)")


class ReadmeForIndex(MetadataHookInterface):
    """Gives the built package its readme."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set `readme` in the project's metadata."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        source = (metadata.get("urls") or {}).get("Source")
        metadata["readme"] = {"content-type": "text/markdown", "text": for_index(text, source)}


def for_index(text: str, source: str | None) -> str:
    """Return a readme without relative links; `source` is the address of the files, None where there is none."""
    def replaced(match: re.Match[str]) -> str:
        picture, words, path, place = match[1], match[2], match[3], match[4] or ""
        if not path:  # a place of the page itself
            return match[0]
        if source:
            return f"{picture}[{words}]({source.rstrip('/')}/{path}{place})"
        if picture:
            return f"*({words})*"
        return f"`{path}`" if words in (path, "") else f"{words} (`{path}`)"

    return _LINK.sub(replaced, text)
