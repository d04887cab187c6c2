"""The texts of the files: the environment of a rank, the arguments, how to start, and the default process group."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from holmes_hpc.cluster import ClusterDescription, Node
from holmes_hpc.cluster.nccl import node_environment
from holmes_hpc.planner.megatron_export.mapping import Grid
from holmes_hpc.values import Plan
from holmes_hpc.words import numbers

_RANKS_A_LINE = 16

WORLD_GROUP = '''\
"""Start a script with torch's default process group on sockets: Megatron-LM names no network for that group.

usage: python world_group.py SCRIPT [ARGUMENTS]
"""
import os
import runpy
import sys

import torch.distributed as dist

make_group = dist.init_process_group


def init_process_group(*arguments, **keywords):
    options = dist.ProcessGroupNCCL.Options()
    options.config.net_name = "Socket"
    keywords.setdefault("pg_options", options)
    return make_group(*arguments, **keywords)


dist.init_process_group = init_process_group
sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
'''

RUN = '''\
#!/bin/bash
# One task of srun. MEGATRON is a checkout of Megatron-LM, MASTER_ADDR the node of Slurm's rank {master}; what the plan
# does not decide (data, tokenizer, optimizer, iterations) are the arguments of this script:
#   srun bash run.sh --data-path ... --tokenizer-type ... --train-iters ... --lr ...
here=$(cd "$(dirname "${{BASH_SOURCE[0]}}")" && pwd)
source "$here/environment.sh"
source "$here/arguments.sh"
exec python {wrapper}"${{MEGATRON:?a checkout of Megatron-LM}}/pretrain_gpt.py" "${{megatron_arguments[@]}}" \\
  --nccl-communicator-config-path "$here/$COMMUNICATORS" "$@"
'''


def run_script(grid: Grid, *, wrapped: bool) -> str:
    """Return the script that every task runs; `wrapped`: it starts Megatron through `world_group.py`."""
    return RUN.format(master=grid.ranks.index(0), wrapper='"$here/world_group.py" ' if wrapped else "")


def arguments_script(decided: Sequence[tuple[str, ...]], model: Sequence[tuple[str, ...]]) -> str:
    """Return the arguments as a bash array."""
    lines = ["megatron_arguments=(", "  # what the plan decides"]
    lines += [f"  {shlex.join(words)}" for words in decided]
    lines += ["  # the model", *(f"  {shlex.join(words)}" for words in model), ")"]
    return "\n".join(lines) + "\n"


def environment_script(grid: Grid, cluster: ClusterDescription, communicators: Mapping[str, str]) -> str:
    """Return what a task sources: its rank, where rank 0 is, and the NCCL settings of its node.

    `communicators` is the name of the communicator file of every fabric.
    """
    lines = [
        "# Sourced by every task before Megatron-LM starts.",
        *_rank_lines(grid),
        f"export WORLD_SIZE={len(grid.ranks)}",
        'export LOCAL_RANK="$SLURM_LOCALID"',
        f'export MASTER_ADDR="${{MASTER_ADDR:?the node of Slurm rank {grid.ranks.index(0)}}}"',
        'export MASTER_PORT="${MASTER_PORT:-29500}"',
        *(["export CUDA_DEVICE_MAX_CONNECTIONS=1"] if grid.tensor > 1 else []),
        "# These would override the network of every group.",
        "unset NCCL_NET NCCL_IB_DISABLE",
    ]
    alike: dict[tuple[object, ...], list[Node]] = {}
    for node in cluster.nodes:
        alike.setdefault((node.label, communicators[node.fabric], node.hca, node.gid_index, node.interface),
                         []).append(node)
    for number, nodes in enumerate(alike.values()):
        ranks = [rank for node in nodes for rank in cluster.ranks_of(node)]
        condition = " || ".join(_range(words) for words in numbers(ranks).split(", "))
        lines.append(f"{'el' if number else ''}if (( {condition} )); then  # {', '.join(n.slot for n in nodes[:8])}"
                     + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else ""))
        lines += [f"  {line}" for line in _node_lines(nodes[0], communicators[nodes[0].fabric])]
    return "\n".join([*lines, "fi"]) + "\n"


def rank_table(grid: Grid, plan: Plan) -> str:
    """Return the ranks as a table: Slurm's, Megatron's, its indices, and where it runs."""
    rows = [("slurm", "megatron", "tensor", "data", "pipeline", "slot", "local", "fabric")]
    for place, rank, (i, d, s) in zip(plan.ranks, grid.ranks, grid.places, strict=True):
        rows.append((str(place.rank), str(rank), str(i), str(d), str(s), place.slot, str(place.local_rank),
                     place.fabric))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
                     for row in rows) + "\n"


def _rank_lines(grid: Grid) -> list[str]:
    if grid.is_identity:
        return ['export RANK="$SLURM_PROCID"']
    words = list(map(str, grid.ranks))
    lines = [" ".join(words[i:i + _RANKS_A_LINE]) for i in range(0, len(words), _RANKS_A_LINE)]
    return ["# Megatron's rank of each of Slurm's", "megatron_ranks=(", *(f"  {line}" for line in lines), ")",
            'export RANK="${megatron_ranks[$SLURM_PROCID]}"']


def _range(words: str) -> str:
    first, _, last = words.partition("-")
    return f"SLURM_PROCID >= {first} && SLURM_PROCID <= {last}" if last else f"SLURM_PROCID == {first}"


def _node_lines(node: Node, communicators: str) -> list[str]:
    settings = node_environment(node.hca, node.gid_index, node.interface)
    if node.interface:
        settings["GLOO_SOCKET_IFNAME"] = node.interface.lstrip("=")
    lines = [f'export {name}="{value}"' for name, value in settings.items()]
    wanted = {"hca": ("ib", "roce"), "gid_index": ("roce",), "interface": (node.network,)}
    unset = [key for key, networks in wanted.items() if node.network in networks and getattr(node, key) is None]
    if unset:
        keys = ", ".join(f"cluster.partitions.{node.label}.{key}" for key in unset)
        lines.append(f"# left to NCCL: {keys}")
    return [*lines, f"COMMUNICATORS={communicators}"]
