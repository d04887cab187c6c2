"""The text of `--help`: groups with their options, and every setting with what it takes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from holmes_hpc.config import folders
from holmes_hpc.config.describe import expected, item_schema, listed, settings
from holmes_hpc.config.schema import Root

GROUPS = ("cluster", "model", "parallel", "data", "train", "optimizer", "launch")


def help_text(verb: str, summary: str, base: Path) -> str:
    """Return the help of a verb; `base` is the folder of the configuration files that ship with the package."""
    lines = [
        f"usage: holmes {verb} +cluster=NAME [GROUP=NAME ...] [KEY=VALUE ...]",
        f"       python -m holmes_hpc.{verb} +cluster=NAME [GROUP=NAME ...] [KEY=VALUE ...]",
        "",
        summary,
        "",
        "groups:",
    ]
    for group in GROUPS:
        names = folders.options(group, base) + folders.options(group, folders.user_folder())
        shown = f"+{group}=" if group == "cluster" else f"{group}="
        lines.append(f"  {shown:<12} {listed(names)}")
    lines += [
        f"  your own files: {folders.user_folder()}/cluster/NAME.yaml, or hydra.searchpath=[FOLDER]",
        "",
        "options:",
        "  -m           a sweep over all combinations of values with commas, as in parallel=holmes,megatron",
        "  --cfg job    print the composed configuration and do nothing else",
        "  --hydra-help Hydra's own options",
        "",
        "keys:",
    ]
    return "\n".join(lines + _keys(Root, "")) + "\n"


def _keys(schema: Any, path: str) -> list[str]:
    lines = []
    for setting in settings(schema, path).values():
        item = item_schema(setting.kind)
        if dataclasses.is_dataclass(setting.kind):
            lines += _keys(setting.kind, f"{setting.path}.")
        elif item is not None:
            lines += [f"  {setting.path}", f"      {setting.help}"]
            lines += _keys(item, f"{setting.path}.{'LABEL' if setting.path.endswith('partitions') else 'N'}.")
        else:
            lines += [f"  {setting.path}", f"      {setting.help}; {expected(setting)}"]
            lines += [f"        {word:<12} {told}" for word, told in setting.metadata.get("told", {}).items()]
    return lines
