"""The tables of a plan for people."""

from __future__ import annotations

import io

from rich.console import Console

from holmes_hpc.cluster import read_cluster
from holmes_hpc.config.compose import compose
from holmes_hpc.planner import plan, render

TWO_KINDS = ["+cluster=mixed", "cluster.partitions.ib.fabric=island1", "cluster.partitions.roce.fabric=island1",
             "cluster.partitions.ib.nodes=1", "cluster.partitions.ib.nics_per_node=2",
             "cluster.partitions.ib.ethernet_gbps=100", "cluster.partitions.roce.gpus_per_node=4",
             "cluster.partitions.roce.gpu=t4", "cluster.partitions.roce.nic=edr100",
             "cluster.partitions.roce.ethernet_gbps=10"]
LEAVES_OUT = ["+cluster=mixed_gpus", "cluster.partitions.roce.gpu=t4", "cluster.partitions.roce.ethernet_gbps=5",
              "cluster.partitions.ib.nodes=1", "cluster.partitions.roce.nodes=1", "model=gpt2_small",
              "model.num_layers=4", "train.precision=float16", "train.global_batch_size=16",
              "parallel.leave_nodes_out=true"]


def fabrics(*overrides: str) -> list[list[str]]:
    """Return the cells of the table of fabrics, row by row."""
    config = compose(list(overrides))
    buffer = io.StringIO()
    Console(file=buffer, width=200).print(render(plan(config, "slurm"), read_cluster(config.cluster)))
    lines = buffer.getvalue().splitlines()
    first = next(number for number, line in enumerate(lines) if line.strip() == "fabrics")
    rows = []
    for line in lines[first + 4:]:
        if not line.strip():
            break
        rows.append([cell.strip() for cell in line.split("  ") if cell.strip()])
    return rows


def test_a_fabric_of_two_kinds_of_nodes_has_two_rows() -> None:
    assert fabrics(*TWO_KINDS) == [
        ["island1", "ib/0", "2 x a100-80g a node", "2 x hdr200 (ib)", "100 Gb/s", "0-1"],
        ["island1", "roce/0, roce/1", "4 x t4 a node", "edr100 (ib)", "10 Gb/s", "2-9"]]


def test_equal_labels_of_a_fabric_share_a_row_in_any_order() -> None:
    assert fabrics("+cluster=mixed", "cluster.order=alternate", "cluster.partitions.roce.nic=hdr200",
                   "cluster.partitions.roce.fabric=ib") == [
        ["ib", "ib/0, roce/0, ib/1, roce/1", "2 x a100-80g a node", "hdr200 (ib)", "25 Gb/s", "0-7"]]


def test_nodes_that_are_left_out_have_no_row() -> None:
    assert fabrics(*LEAVES_OUT) == [["ib", "ib/0", "2 x a100-80g a node", "hdr200 (ib)", "25 Gb/s", "0-1"]]


def shown(*overrides: str) -> str:
    """Return the printed plan."""
    config = compose(list(overrides))
    buffer = io.StringIO()
    Console(file=buffer, width=160).print(render(plan(config, "slurm"), read_cluster(config.cluster)))
    return buffer.getvalue()


def test_the_second_line_is_the_shape_and_equal_pipelines_are_folded() -> None:
    text = shown("+cluster=mixed", "parallel=holmes", "parallel.pipeline=2", "parallel.tensor=1", "parallel.data=4",
                 "parallel.layer_split=uniform")
    assert text.splitlines()[1].strip() in ("4 x [ib a100-80g: 2, roce a100-80g: 2]",
                                            "4 x [roce a100-80g: 2, ib a100-80g: 2]")
    (row,) = (line for line in text.splitlines() if "(4 equal)" in line)
    assert "0-3" in row and "each" in row
    assert "ranks 0-3 on ib/0, ib/1" in row and "ranks 4-7 on roce/0, roce/1" in row


def test_a_strategy_for_unlike_pipelines_says_what_its_name_means_where_all_are_equal() -> None:
    text = shown("+cluster=uniform", "cluster.nodes=2", "cluster.gpus_per_node=2", "parallel=flashflex",
                 "train.global_batch_size=8")
    assert ("all pipelines are equal" in text) == ("(" in text and " equal)" in text)
    assert "all pipelines are equal" not in shown("+cluster=mixed", "parallel=megatron")
