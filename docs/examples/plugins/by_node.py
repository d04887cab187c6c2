"""A strategy: every node is one stage of a single pipeline, in the order of the cluster file."""

from holmes_hpc import extend
from holmes_hpc.errors import PlanRefusedError


def by_node(task: extend.Task, tensor: int) -> list[extend.Shape]:
    """Return the only layout: tensor-parallel groups side by side on each node."""
    nodes = task.cluster.nodes
    if task.settings.pipeline not in (None, len(nodes)):
        raise PlanRefusedError(f"by_node: parallel.pipeline={task.settings.pipeline}, and there are {len(nodes)} "
                               f"nodes. Set it to {len(nodes)}, or leave it null.")
    stages = tuple(extend.tensor_groups(task.cluster.ranks_of(node), tensor) for node in nodes)
    return [extend.Shape("by_node", f"a stage on each of {len(nodes)} nodes", stages, extend.GroupRules())]


extend.add_strategy("by_node", by_node)
