"""Which communication backend a run uses; on Slurm decided before torch is imported, once for all ranks."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, MutableMapping, Sequence

from holmes_hpc.cluster import ClusterDescription, Node
from holmes_hpc.errors import ConfigurationError
from holmes_hpc.launch.node.node_report import NodeReport
from holmes_hpc.values.backend_kinds import BACKEND_KINDS, BackendKind, preferred_backends
from holmes_hpc.words import counted

AUTO = "auto"
_NO_GPU = "cpu"


def decide_backend(wanted: str, nodes: Sequence[tuple[Node, NodeReport]]) -> BackendKind:
    """Return the backend for `launch.backend` and the nodes, each described and as it reports itself.

    `auto` is one for GPUs where the cluster file gives all nodes GPUs and one of them has some: the others that have
    none are then named as mismatches, where ranks that each looked for themselves would wait for each other in two
    backends.
    """
    if wanted != AUTO:
        return BACKEND_KINDS[wanted]
    described = all(node.gpu != _NO_GPU for node, _ in nodes)
    return _preferred(has_gpus=described and any(report.gpus for _, report in nodes))


def backend_here(wanted: str, mode: str, cluster: ClusterDescription, gpus: int, *, shared: bool = False
                 ) -> BackendKind | None:
    """Return the backend of an emulated or local run on this machine's `gpus`; None: the first that torch has here.

    `auto` is none for GPUs where the cluster file says that ranks compute on CPUs. Raises ConfigurationError where the
    asked one cannot work: emulated ranks compute on the CPU. Local ones may use this machine's GPUs: such a backend
    wants one for each rank, unless ranks may share them (`shared`), and each node of a cluster counts its GPUs from 0.
    """
    asked = None if wanted == AUTO else BACKEND_KINDS[wanted]
    title = (asked or preferred_backends()[0]).title
    if mode == "emulated":
        why = f"the ranks of an emulated run compute on this machine's CPU, and {title} is for GPUs"
    elif gpus < (1 if shared else cluster.world_size) or len(cluster.nodes) > 1:
        why = (f"{title} needs a GPU for each rank, in a local run on one node; this machine has "
               f"{counted(gpus, 'GPU')}, and the cluster {counted(cluster.world_size, 'rank')} on "
               f"{counted(len(cluster.nodes), 'node')}")
    elif asked is None:
        return _preferred(has_gpus=False) if cluster.nodes[0].gpu == _NO_GPU else None
    else:
        return asked
    if asked is not None and asked.needs_gpus:
        others = [kind.name for kind in BACKEND_KINDS.values() if not kind.needs_gpus]
        raise ConfigurationError(f"launch.backend={wanted} in {mode} mode: {why}. Set launch.backend="
                                 f"{', '.join(others)} or {AUTO}.")
    return asked or _preferred(has_gpus=False)


def check_environment(kind: BackendKind, environment: Mapping[str, str], fabrics: Sequence[str] = ()) -> None:
    """Raise ConfigurationError when the environment has a variable that would break a run over this backend.

    `fabrics` are those of the cluster's nodes.
    """
    if kind.environment is not None:
        importlib.import_module(kind.environment).check_environment(environment, fabrics)


def prepare_environment(kind: BackendKind, node: Node, environment: MutableMapping[str, str],
                        fabrics: Sequence[str] = ()) -> None:
    """Set what the backend is told of a rank's node by the environment; call it before torch is imported.

    What the cluster file says of the node goes before what is set. Raises ConfigurationError when the environment has
    another variable that would break the run in a cluster of these `fabrics`.
    """
    if kind.environment is None:
        return
    told = told_of_node(kind, node)
    check_environment(kind, {name: value for name, value in environment.items() if name not in told}, fabrics)
    environment.update(told)
    for name, value in importlib.import_module(kind.environment).DEFAULTS.items():
        environment.setdefault(name, value)


def told_of_node(kind: BackendKind, node: Node) -> dict[str, str]:
    """Return the variables by which the ranks of a node are told what the cluster file says of it."""
    if kind.environment is None:
        return {}
    module = importlib.import_module(kind.environment)
    return dict(module.node_environment(node.hca, node.gid_index, node.interface))


def _preferred(*, has_gpus: bool) -> BackendKind:
    return next(kind for kind in preferred_backends() if has_gpus or not kind.needs_gpus)
