"""From a cluster file to the components of a job: one job over several partitions has a component for each label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holmes_hpc.errors import ConfigurationError

SHAPES = ("auto", "het", "features", "plain")


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
        lines = []
        for name, value in self.options.items():
            if value is True:
                lines.append(f"--{name}")
            elif value is not None and value is not False:
                lines.append(f"--{name}={value}")
        return lines


def job_shape(cluster: Any) -> str:
    """Return `het`, `features` or `plain` for a cluster configuration.

    `auto`: het where labels name different partitions, features where they share one and differ in constraints, else
    plain.
    """
    if cluster.shape != "auto":
        return str(cluster.shape)
    labels = _labels(cluster)
    if len({_partition(label, part) for label, part in labels.items()}) > 1:
        return "het"
    if len({part.constraint for part in labels.values()}) > 1:
        return "features"
    return "plain" if len({part.gpus_per_node for part in labels.values()}) == 1 else "het"


def job_components(cluster: Any, sbatch: Mapping[str, Any]) -> tuple[Component, ...]:
    """Return the components of one job over the whole cluster.

    `sbatch` are further options for every component; a null value leaves one of ours out. Raises ConfigurationError
    where the asked shape cannot hold the labels.
    """
    shape, labels = job_shape(cluster), _labels(cluster)
    if shape == "het":
        return tuple(_component((label,), part, part.nodes, part.constraint, sbatch) for label, part in labels.items())
    _check_one_component(shape, labels)
    first = next(iter(labels.values()))
    nodes = sum(part.nodes for part in labels.values())
    constraint = first.constraint
    if shape == "features":
        constraint = "[" + "&".join(f"{part.constraint}*{part.nodes}" for part in labels.values()) + "]"
    return (_component(tuple(labels), first, nodes, constraint, sbatch),)


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
    options.update({str(name).replace("_", "-"): value for name, value in sbatch.items()})
    return Component(labels, nodes, part.gpus_per_node, options, part.cpus_per_task)


def _check_one_component(shape: str, labels: Mapping[str, Any]) -> None:
    partitions = {_partition(label, part) for label, part in labels.items()}
    if len(partitions) > 1:
        raise ConfigurationError(
            f"cluster.shape={shape} is one component in one partition, but the labels name "
            f"{', '.join(sorted(partitions))}; use cluster.shape=het, one job with a component for each"
        )
    for name in ("gpus_per_node", "account", "qos", "time_limit", "exclude", "gres", "cpus_per_task"):
        values = {getattr(part, name) for part in labels.values()}
        if len(values) > 1:
            raise ConfigurationError(
                f"cluster.shape={shape} gives all nodes the same {name}, but the labels have "
                f"{', '.join(map(str, values))}; use cluster.shape=het"
            )
    missing = [label for label, part in labels.items() if shape == "features" and not part.constraint]
    if missing:
        raise ConfigurationError(
            f"cluster.shape=features needs cluster.partitions.{missing[0]}.constraint, a feature that only these "
            "nodes have"
        )


def _labels(cluster: Any) -> dict[str, Any]:
    if cluster.partitions:
        return {str(label): part for label, part in cluster.partitions.items()}
    raise ConfigurationError(
        f"cluster {cluster.name}: the short form describes nodes but no Slurm partition; "
        "write cluster.partitions with a label for each kind of node to submit to Slurm"
    )


def _partition(label: str, part: Any) -> str:
    return str(part.partition or label)
