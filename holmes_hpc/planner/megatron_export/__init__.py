"""Writing a plan out for Megatron-LM: files that start it as the plan says. Needs no torch."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holmes_hpc.architecture import Architecture
from holmes_hpc.cluster import ClusterDescription
from holmes_hpc.cluster.nics import NICS
from holmes_hpc.errors import ConfigurationError, PlanRefusedError
from holmes_hpc.planner.making import plan as make_plan
from holmes_hpc.planner.megatron_export.arguments import model_arguments, plan_arguments
from holmes_hpc.planner.megatron_export.as_run import predict_as_run, within_megatron
from holmes_hpc.planner.megatron_export.communicators import communicator_files, kind_networks
from holmes_hpc.planner.megatron_export.mapping import Grid, map_plan
from holmes_hpc.planner.megatron_export.scripts import (
    WORLD_GROUP,
    arguments_script,
    environment_script,
    rank_table,
    run_script,
)
from holmes_hpc.planner.strategies.shapes import divisors
from holmes_hpc.planner.telling.restore import restore
from holmes_hpc.runs.private import replace_file
from holmes_hpc.values import Plan, Prediction
from holmes_hpc.values.strategy_kinds import AUTO, STRATEGY_KINDS, strategy_kind
from holmes_hpc.words import counted, seconds_words

__all__ = ["Export", "export"]

_MOST_DEGREES = 4


@dataclass(frozen=True)
class Export:
    """A plan and what is predicted of it under Megatron-LM; `files` by name, README.txt first."""

    plan: Plan
    predicted: Prediction
    files: dict[str, str]

    @property
    def text(self) -> str:
        """All files, each below its name."""
        return "\n".join(f"==== {name} ====\n{content}" for name, content in self.files.items())

    def write(self, folder: Path) -> None:
        """Write the files. Raises ConfigurationError where the folder cannot be written."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in self.files.items():
                replace_file(folder / name, content)
        except OSError as error:
            raise ConfigurationError(f"output_folder={folder}: cannot be written: {error.strerror or error}; name "
                                     "another folder.") from None


def export(config: Any, cluster: ClusterDescription) -> Export:
    """Plan within what Megatron-LM can run, for the nodes of `cluster`, and return the files.

    With `parallel.strategy=auto` the fastest of the plans of auto, holmes and megatron that Megatron-LM can express,
    as it runs them. Where the plan of holmes has unlike data-parallel degrees and none was asked for, those that
    divide the smallest fabric are tried. Raises PlanRefusedError where there is none, with the reasons.
    """
    limited = within_megatron(config)
    strategy = str(config.parallel.strategy)
    found: list[Export] = []
    refusals: list[PlanRefusedError] = []
    exportable = (AUTO, *(kind.name for kind in STRATEGY_KINDS.values() if kind.in_megatron))
    for name in exportable if strategy == AUTO else (strategy,):
        limited.parallel.strategy = name
        made = _try(limited, cluster, refusals)
        found += [made] if made else []
        if strategy_kind(name).divides_by_data and not made and config.parallel.data is None:
            for degree in _data_degrees(cluster):
                limited.parallel.data = degree
                other = _try(limited, cluster, [])
                found += [other] if other else []
            limited.parallel.data = None
    if not found:
        raise PlanRefusedError(" Or: ".join(dict.fromkeys(map(str, refusals))))
    best = min(found, key=lambda each: each.predicted.step_seconds)
    notes = [f"Another plan was left out. {refusal}" for refusal in dict.fromkeys(map(str, refusals))]
    readme = "\n".join([best.files["README.txt"], *notes]) + "\n" if notes else best.files["README.txt"]
    return dataclasses.replace(best, files={**best.files, "README.txt": readme})


def _try(config: Any, cluster: ClusterDescription, refusals: list[PlanRefusedError]) -> Export | None:
    try:
        return _export(config, cluster, make_plan(config, "slurm", cluster))
    except PlanRefusedError as refusal:
        refusals.append(refusal)
        return None


def _data_degrees(cluster: ClusterDescription) -> tuple[int, ...]:
    """Return the largest data-parallel degrees that the smallest fabric can be divided into."""
    smallest = min(sum(node.gpus for node in nodes) for nodes in cluster.fabrics.values())
    return divisors(smallest)[::-1][:_MOST_DEGREES]


def _export(config: Any, cluster: ClusterDescription, plan: Plan) -> Export:
    grid = map_plan(plan)
    task, _ = restore(config, plan, "slurm", cluster)
    cluster = task.cluster
    on_cpu = [node.slot for node in cluster.nodes if node.gpu == "cpu"]
    if on_cpu:
        raise PlanRefusedError(f"output=megatron: {on_cpu[0]} has no GPU, and Megatron-LM computes on GPUs. Describe "
                               "GPUs in the cluster file.")
    one_network = plan.groups[0].network if strategy_kind(plan.strategy).one_network else None
    networks = kind_networks(grid, cluster, one_network)
    predicted = predict_as_run(config, cluster, plan, networks)
    texts = communicator_files(networks)
    alike = len(set(texts.values())) == 1
    names = {fabric: "communicators.yaml" if alike else f"communicators-{fabric}.yaml" for fabric in texts}
    wrapped = cluster.shared_network(range(plan.world_size)) == "ethernet" and any(
        NICS[node.nic].rdma for node in cluster.nodes)
    decided = plan_arguments(config, plan, grid)
    files = {
        "README.txt": _readme(plan, grid, predicted, wrapped=wrapped),
        "ranks.txt": rank_table(grid, plan),
        "arguments.sh": arguments_script(decided, model_arguments(Architecture.from_config(config.model),
                                                                  plan.tied_embeddings)),
        **{names[fabric]: text for fabric, text in texts.items()},
        "environment.sh": environment_script(grid, cluster, names),
        "run.sh": run_script(grid, wrapped=wrapped),
    }
    if wrapped:
        files["world_group.py"] = WORLD_GROUP
    return Export(plan, predicted, files)


def _readme(plan: Plan, grid: Grid, predicted: Prediction, *, wrapped: bool) -> str:
    lines = [
        f"A plan of the strategy {plan.strategy} for Megatron-LM: tensor {grid.tensor}, pipeline {grid.pipeline}, data "
        f"{grid.data}, layers {'+'.join(map(str, grid.layers))}, {counted(grid.microbatches, 'micro-batch')} of "
        f"{plan.micro_batch_size} in each pipeline.",
        f"Predicted as Megatron-LM runs it: {seconds_words(predicted.step_seconds)} a step, "
        f"{predicted.tokens_per_second:,.0f} tokens/s, at most {max(predicted.memory_gib_per_rank):.1f} GiB a rank.",
        "Written from Megatron-core's published formulas and options; not yet run with Megatron-LM.",
        "",
        "ranks.txt        which rank of Megatron's each of Slurm's is" + (" (the same)" if grid.is_identity else ""),
        "arguments.sh     the arguments that the plan decides, and the model",
        "communicators    the network of each kind of process group (--nccl-communicator-config-path)",
        "environment.sh   rank, addresses and NCCL's settings of a node, by Slurm's rank",
        "run.sh           what each task of srun runs",
    ]
    if wrapped:
        lines.append("world_group.py   puts torch's default process group, for which Megatron-LM names no network, on "
                     "sockets")
    return "\n".join(lines) + "\n"

