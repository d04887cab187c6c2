"""Whether a cluster is one of those that ship with the package, which no site has as they are."""

from __future__ import annotations

from typing import Any

import yaml

from holmes_hpc.config.folders import options, package_folder


def is_shipped(cluster: Any) -> bool:
    """Say whether a cluster configuration describes a cluster of ours, by its name and its partitions.

    Numbers of nodes may have been changed and labels left out. One that was given labels of its own, or other
    partitions, is a site's.
    """
    folder = package_folder()
    if str(cluster.name) not in options("cluster", folder):
        return False
    file = yaml.safe_load((folder / "cluster" / f"{cluster.name}.yaml").read_text(encoding="utf-8"))
    shipped = {str(label): (part or {}).get("partition") for label, part in (file.get("partitions") or {}).items()}
    return {(str(label), part.partition) for label, part in cluster.partitions.items()} <= set(shipped.items())
