"""The text of `--help`: groups with their options, and every setting with what it takes and its default."""

from __future__ import annotations

from pathlib import Path

from holmes_hpc.config import folders
from holmes_hpc.config.describe import listed
from holmes_hpc.config.listing import GROUPS, Listed, listed_settings, shown


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
        prefix = f"+{group}=" if group == "cluster" else f"{group}="
        lines.append(f"  {prefix:<12} {listed(names)}")
    own = folders.user_folder() or "~/.config/holmes_hpc"
    lines += [
        f"  your own files: {own}/cluster/NAME.yaml, or hydra.searchpath=[FOLDER]",
        "",
        "options:",
        "  -m           a sweep over all combinations of values with commas, as in parallel=holmes,megatron",
        "  --cfg job    print the composed configuration and do nothing else",
        "  --hydra-help Hydra's own options",
        "",
        "keys (`holmes settings WORD` shows those that a word occurs in):",
    ]
    return "\n".join([*lines, *(line for each in listed_settings(base) for line in key_lines(each))]) + "\n"


def key_lines(each: Listed) -> list[str]:
    """Return the lines about one setting: its path, what it means and takes, its default, and its words' meanings."""
    lines = [f"  {each.path}", f"      {each.setting.help}; {each.takes}; default {shown(each.default)}"]
    lines += [f"        with {choice}: {shown(value)}" for choice, value in each.others.items()]
    return lines + [f"        {word:<12} {told}" for word, told in each.setting.metadata.get("told", {}).items()]
