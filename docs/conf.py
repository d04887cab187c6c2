"""What Sphinx needs to make a site of these pages: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from holmes_hpc import __version__  # noqa: E402
from tools.messages import page  # noqa: E402

project = "holmes_hpc"
author = "holmes_hpc developers"
copyright = author
release = version = __version__
extensions = ["myst_parser"]
exclude_patterns = ["examples"]
html_theme = "alabaster"
html_theme_options = {"page_width": "1100px", "sidebar_width": "240px"}
html_static_path: list[str] = []
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]


def make_pages(app: Any) -> None:
    """Write the pages that are made of other files, beside the others: the changelog, and all messages."""
    folder = HERE / "generated"
    folder.mkdir(exist_ok=True)
    for name, text in (("changelog", (HERE.parent / "CHANGELOG.md").read_text(encoding="utf-8")), ("messages", page())):
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def setup(app: Any) -> None:
    """Take part in the build."""
    app.connect("builder-inited", make_pages)
