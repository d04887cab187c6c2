"""`holmes site NAME`: write a first cluster file from what Slurm tells."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from holmes_hpc.config.folders import own_place
from holmes_hpc.errors import ConfigurationError, HolmesError, LaunchImpossibleError
from holmes_hpc.foreign import ForeignError, read_text
from holmes_hpc.paths import is_there
from holmes_hpc.program import report, run_program
from holmes_hpc.runs.private import put_file
from holmes_hpc.submit.controller import ask_controller
from holmes_hpc.submit.inventory import Inventory, ask_slurm, read_saved
from holmes_hpc.submit.site import describe_site

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_WANTED = "name a file with the output of `scontrol show node` or of sinfo, or a slurm.conf"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="holmes site", description=(
        "Write a first cluster file from sinfo and scontrol, or from what they printed elsewhere."))
    parser.add_argument("name", metavar="NAME", help="the cluster's name, for +cluster=NAME")
    parser.add_argument("--nodes", type=Path, metavar="FILE", help="instead of asking Slurm: the output of `scontrol "
                        "show node` or of `sinfo` with features, or a slurm.conf")
    parser.add_argument("--topology", type=Path, metavar="FILE", help="with --nodes: the output of `scontrol show "
                        "topology`, or a topology.conf")
    parser.add_argument("--output", default=None, metavar="FILE",
                        help="where to write it; - prints it (default: the folder of your own cluster files)")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    arguments = parser.parse_args(argv)
    try:
        return _write(arguments)
    except HolmesError as error:
        return report("site", error)


def _write(arguments: argparse.Namespace) -> int:
    if not _NAME.fullmatch(arguments.name):
        raise ConfigurationError(f"{arguments.name!r} is no name for a cluster file: it takes letters, digits, `_`, "
                                 "`-` and `.`, and begins with a letter or digit; --output says where the file goes")
    text = describe_site(_inventory(arguments), arguments.name)
    if arguments.output == "-":
        sys.stdout.write(text)
        return 0
    path = Path(arguments.output) if arguments.output else own_place("--output") / "cluster" / f"{arguments.name}.yaml"
    if is_there(path) and not arguments.force:
        raise ConfigurationError(f"{path} is there already; give another NAME, or --force to replace it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        put_file(path, text)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}; name another --output") from error
    doubts = text.count("# ?")
    sys.stderr.write(f"holmes site: wrote {path}; {doubts} values are guesses, marked `# ?`. Look at them, then check "
                     f"with `holmes doctor +cluster={arguments.name}`\n")
    return 0


def _inventory(arguments: argparse.Namespace) -> Inventory:
    if arguments.nodes is None:
        controller = ask_controller()
        if controller.partitions is None:
            raise LaunchImpossibleError(f"Slurm tells nothing here: {controller.silence}. Ask on a login node, or give "
                                        "by --nodes what `scontrol show node` printed there")
        return ask_slurm()
    try:
        topology = read_text(arguments.topology) if arguments.topology else None
        nodes = read_text(arguments.nodes)
    except ForeignError as error:
        raise ConfigurationError(f"{error}; {_WANTED}") from error
    try:
        return read_saved(nodes, topology)
    except HolmesError as error:
        raise ConfigurationError(f"{arguments.nodes}: {error}; {_WANTED}") from error


if __name__ == "__main__":
    sys.exit(run_program("site", main))
