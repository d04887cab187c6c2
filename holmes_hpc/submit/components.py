"""From a cluster file to the components of a job: one job over several partitions has a component for each label."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holmes_hpc.errors import ConfigurationError
from holmes_hpc.submit.options import HEAD, check_memory, option_lines, site_options


@dataclass(frozen=True)
class Component:
    """One component of a job: equal nodes of one partition. `options` are sbatch's long options in order.

    An option whose value is True stands alone; None and False leave it out.
    """

    labels: tuple[str, ...]
    nodes: int
    tasks_per_node: int
    options: Mapping[str, Any]
    cpus_per_task: int | None = None

    @property
    def tasks(self) -> int:
        """The number of ranks."""
        return self.nodes * self.tasks_per_node

    def lines(self) -> list[str]:
        """Return the options as they stand after `#SBATCH `."""
        return option_lines(self.options)

    def step_options(self) -> list[str]:
        """Return what srun is told of this component.

        `--cpus-per-task` is repeated: from Slurm 22.05 to 23.02 srun did not take it from the job. Counts of tasks
        are said to srun where a site forbids them to sbatch.
        """
        words = [] if self.cpus_per_task is None else [f"--cpus-per-task={self.cpus_per_task}"]
        if self.options.get("ntasks-per-node") is None:
            if self.options.get("ntasks") is None:
                words += [f"--nodes={self.nodes}", f"--ntasks={self.tasks}"]
            words.append(f"--ntasks-per-node={self.tasks_per_node}")
        return words


_SHARED = ("gpus_per_node", "account", "qos", "time_limit", "exclude", "gres", "cpus_per_task", "sbatch")
"""What all labels of one component have in common."""


def job_shape(cluster: Any) -> str:
    """Return `het`, `features` or `plain` for a cluster configuration.

    `auto`: het where labels name different partitions, features where they share one and differ in constraints, else
    plain; het too where labels of one partition differ in more than that.
    """
    if cluster.shape != "auto":
        return str(cluster.shape)
    labels = _labels(cluster)
    if len({_partition(label, part) for label, part in labels.items()}) > 1 or _differing(labels, _SHARED):
        return "het"
    if not _differing(labels, ("constraint",)):
        return "plain"
    # Slurm counts nodes by features that are all there; an `or` inside would be given any of both.
    return "features" if all(part.constraint and "|" not in part.constraint for part in labels.values()) else "het"


def job_components(cluster: Any, sbatch: Mapping[str, Any]) -> tuple[Component, ...]:
    """Return the components of one job over the whole cluster.

    `sbatch` are further options for every component; a null value leaves one of ours out. Raises ConfigurationError
    where the asked shape cannot hold the labels, or options exclude each other.
    """
    shape, labels = job_shape(cluster), _labels(cluster)
    if shape == "het":
        return tuple(_component((label,), part, part.nodes, part.constraint, sbatch) for label, part in labels.items())
    _check_one_component(shape, labels)
    first = next(iter(labels.values()))
    nodes = sum(part.nodes for part in labels.values())
    constraint = counted_features(labels) if shape == "features" else first.constraint
    return (_component(tuple(labels), first, nodes, constraint, sbatch),)


def counted_features(labels: Mapping[str, Any]) -> str:
    """Return the constraint that asks for each label's number of nodes, such as `[ib*2&(roce&v100)*2]`."""
    counts: dict[str, int] = {}
    for part in labels.values():
        counts[part.constraint] = counts.get(part.constraint, 0) + part.nodes
    terms = (f"({feature})*{count}" if re.search("[&|]", feature) else f"{feature}*{count}"
             for feature, count in counts.items())
    return "[" + "&".join(terms) + "]"


def _component(labels: tuple[str, ...], part: Any, nodes: int, constraint: str | None,
               sbatch: Mapping[str, Any]) -> Component:
    options: dict[str, Any] = {
        "partition": _partition(labels[0], part),
        "nodes": nodes,
        "ntasks-per-node": part.gpus_per_node,
        "cpus-per-task": part.cpus_per_task,
        "gpus-per-node": part.gpus_per_node if part.gres is None and part.gpu != "cpu" else None,
        "gres": part.gres or None,
        "constraint": constraint,
        "account": part.account,
        "qos": part.qos,
        "time": part.time_limit,
        "exclude": part.exclude,
    }
    further = {name: value for name, value in site_options(sbatch, "launch.sbatch").items() if name not in HEAD}
    further |= site_options(part.sbatch, f"cluster.partitions.{labels[0]}.sbatch")
    if "ntasks-per-node" in further and "ntasks" not in further:
        options["ntasks"] = nodes * part.gpus_per_node
    options |= further
    check_memory(options, labels[0])
    return Component(labels, nodes, part.gpus_per_node, options, part.cpus_per_task)


def _check_one_component(shape: str, labels: Mapping[str, Any]) -> None:
    partitions = {_partition(label, part) for label, part in labels.items()}
    if len(partitions) > 1:
        raise ConfigurationError(
            f"cluster.shape={shape} is one component in one partition, but the labels name "
            f"{', '.join(sorted(partitions))}; use cluster.shape=het, one job with a component for each"
        )
    differing = _differing(labels, _SHARED + (() if shape == "features" else ("constraint",)))
    if differing:
        values = sorted({str(getattr(part, differing[0])) for part in labels.values()})
        raise ConfigurationError(
            f"cluster.shape={shape} gives all nodes the same {differing[0]}, but the labels have {', '.join(values)}; "
            "use cluster.shape=het"
        )
    missing = [label for label, part in labels.items() if shape == "features" and not part.constraint]
    if missing:
        raise ConfigurationError(
            f"cluster.shape=features needs cluster.partitions.{missing[0]}.constraint, a feature that only these "
            "nodes have"
        )
    counted = [label for label, part in labels.items()
               if shape == "features" and re.search(r"[\[\]*]", part.constraint)]
    either = [label for label, part in labels.items() if shape == "features" and "|" in part.constraint]
    if either:
        raise ConfigurationError(
            f"cluster.partitions.{either[0]}.constraint={labels[either[0]].constraint}: cluster.shape=features counts "
            "nodes by their features, and Slurm does not count with `|` among them; use cluster.shape=het, or name a "
            "feature that all these nodes have"
        )
    if counted:
        raise ConfigurationError(
            f"cluster.partitions.{counted[0]}.constraint={labels[counted[0]].constraint}: with cluster.shape=features "
            "the counts and brackets are written for you; name the features alone, such as ib or ib&hdr200"
        )


def _differing(labels: Mapping[str, Any], names: tuple[str, ...]) -> list[str]:
    return [name for name in names if len({str(getattr(part, name)) for part in labels.values()}) > 1]


def _labels(cluster: Any) -> dict[str, Any]:
    if cluster.partitions:
        return {str(label): part for label, part in cluster.partitions.items()}
    raise ConfigurationError(
        f"cluster {cluster.name}: the short form describes nodes but no Slurm partition; "
        "write cluster.partitions with a label for each kind of node to submit to Slurm"
    )


def _partition(label: str, part: Any) -> str:
    return str(part.partition or label)
