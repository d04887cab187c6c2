"""Makes the tables of `docs/accuracy.md` from the published measurements.

    python -m benchmarks.accuracy            # print every table
    python -m benchmarks.accuracy --write    # put them into the page, between its markers
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from benchmarks import accuracy_public, holmes_paper
from benchmarks.published import (
    Row,
    fixes_launches,
    gpt,
    korthikanti,
    llama_3,
    sc21,
    unfused_gpt_layer_bytes,
    vtrain_multi,
    vtrain_single,
)
from benchmarks.tables import table
from benchmarks.trainers import MEGATRON_2022
from holmes_hpc.planner.cost import gpu_constants
from holmes_hpc.planner.cost.gpu_constants import network_share
from holmes_hpc.planner.cost.memory_parts import activation_parts

PAGE = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"
BARS = {"Megatron-LM, SC'21": (6.0, None), "vTrain, many nodes": (7.0, 3.0), "vTrain, one node": (9.0, None)}
"""Mean and median absolute error in percent that the tests hold."""
OTHERS = {"Megatron-LM, SC'21": "Calculon 9.25", "vTrain, many nodes": "vTrain 14.7, Calculon 15.4",
          "vTrain, one node": "vTrain 8.4 (with profiled kernels), Calculon 42"}
"""Mean absolute error of other predictors, on more rows of the same tables than are here."""


@dataclass(frozen=True)
class Score:
    """Errors of a set of rows in percent: how many, mean absolute, median absolute, mean, largest absolute."""

    rows: int
    mean: float
    median: float
    bias: float
    largest: float


def score(rows: Iterable[Row]) -> Score:
    """Return how well the rows are predicted."""
    errors = [row.error_percent for row in rows]
    sizes = [abs(error) for error in errors]
    return Score(len(errors), mean(sizes), median(sizes), mean(errors), max(sizes))


def predicted_sets() -> dict[str, list[Row]]:
    """Return the sets of rows on which no constant was fitted."""
    return {"Megatron-LM, SC'21": sc21(), "vTrain, many nodes": vtrain_multi(),
            "vTrain, one node": [row for row in vtrain_single() if not fixes_launches(row)]}


def summary() -> str:
    """Return the table of all sets."""
    lines = []
    for name, rows in predicted_sets().items():
        found, (bar, bar_median) = score(rows), BARS[name]
        lines.append((name, found.rows, f"{found.mean:.1f}", f"{bar:g}", f"{found.median:.1f}",
                      f"{bar_median:g}" if bar_median else "", f"{found.bias:+.1f}", f"{found.largest:.0f}",
                      OTHERS[name]))
    return table(("rows", "number", "mean error %", "bar", "median %", "bar", "bias %", "largest %",
                  "others, mean %"), lines)


def sc21_rows() -> str:
    """Return each row of Megatron's SC'21 table, and the band of what was not published."""
    lines = []
    for row in sc21():
        band = [row.with_micro_batch(size).error_percent for size in (1, 2, 4)]
        lines.append((row.name, row.run.tensor, row.run.pipeline, row.run.data, f"{row.seconds:.2f}",
                      f"{row.run.seconds:.2f}", *(f"{error:+.1f}" for error in band)))
    means = [mean(abs(row.with_micro_batch(size).error_percent) for row in sc21()) for size in (1, 2, 4)]
    lines.append(("mean absolute", "", "", "", "", "", *(f"{error:.1f}" for error in means)))
    return table(("model", "tensor", "pipeline", "data", "published s", "predicted s", "error % at micro-batch 1", "2",
                  "4"), lines)


def fitted_rows() -> str:
    """Return what remains on the rows that fixed the constants."""
    lines = [(row.name, row.run.tensor, row.run.pipeline, f"{row.seconds:.2f}",
              f"{row.run.seconds:.2f}", f"{row.error_percent:+.1f}") for row in korthikanti()]
    return table(("model, recomputation", "tensor", "pipeline", "published s", "model s", "residual %"), lines)


def multi_rows() -> str:
    """Return vTrain's many-node rows by model and tensor degree."""
    return by_group(vtrain_multi(), lambda row: (row.run.architecture.hidden_size, row.run.tensor),
                    ("hidden", "tensor"))


def worst_multi_rows() -> str:
    """Return the rows with the largest errors."""
    worst = sorted(vtrain_multi(), key=lambda row: -abs(row.error_percent))[:10]
    return table(("row", "measured s", "predicted s", "error %"),
                 [(row.name, f"{row.seconds:.2f}", f"{row.run.seconds:.2f}", f"{row.error_percent:+.0f}")
                  for row in worst])


def single_rows() -> str:
    """Return vTrain's one-node rows by what they are composed of."""
    rows = [row for row in vtrain_single() if not fixes_launches(row)]
    return by_group(rows, lambda row: (row.run.architecture.hidden_size, row.run.tensor, row.run.micro_batch),
                    ("hidden", "tensor", "micro-batch"))


def by_group(rows: Sequence[Row], key: Callable[[Row], tuple[int, ...]], names: tuple[str, ...]) -> str:
    """Return mean absolute error and bias of each group of rows."""
    groups: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    lines = [(*group, (found := score(members)).rows, f"{found.mean:.1f}", f"{found.bias:+.1f}")
             for group, members in sorted(groups.items())]
    return table((*names, "rows", "mean error %", "bias %"), lines)


def h100_rows() -> str:
    """Return Llama 3 405B on H100, for two interleavings and two ways of counting FLOPs."""
    lines = []
    for chunks in (1, 8):
        for run, published in llama_3(chunks):
            seconds = run.seconds * run.gpus * 1e12
            weights = 6 * run.architecture.parameter_count() * run.architecture.sequence_length
            counts = (weights, run.architecture.model_flops_per_sample())
            found = [f"{run.global_batch * flops / seconds:.0f}" for flops in counts]
            lines.append((run.gpus, chunks, f"{published:.0f}", *found))
    return table(("GPUs", "chunks (assumed)", "published TFLOP/s", "predicted, 6 N a token",
                  "predicted, with attention"), lines)


def memory_rows() -> str:
    """Return activations of a layer, our sum of parts against Korthikanti et al.'s closed forms."""
    lines = []
    for name, hidden, heads, batch in (("22B", 6144, 64, 4), ("175B", 12288, 96, 1), ("530B", 20480, 128, 1),
                                       ("1T", 25600, 160, 1)):
        model = gpt(hidden, 1, heads, 2048)
        for tensor, sequence_parallel in ((1, False), (8, False), (8, True)):
            ours = sum(activation_parts(model, "layers.0", batch, tensor=tensor, sequence_parallel=sequence_parallel,
                                        software=MEGATRON_2022).values())
            theirs = unfused_gpt_layer_bytes(model, batch, tensor=tensor, sequence_parallel=sequence_parallel)
            saved = 1 - sum(activation_parts(model, "layers.0", batch, tensor=tensor, recompute="selective",
                                             sequence_parallel=sequence_parallel,
                                             software=MEGATRON_2022).values()) / ours
            lines.append((name, tensor, "yes" if sequence_parallel else "no", f"{ours / 2**20:.0f}",
                          f"{theirs / 2**20:.0f}", f"{100 * (ours / theirs - 1):+.1f}", f"{100 * saved:.0f}"))
    return table(("model", "tensor", "sequence parallel", "sum of parts MiB", "published formula MiB", "error %",
                  "saved by selective recomputation %"), lines)


def holmes_rows() -> str:
    """Return Holmes's main table."""
    cells = list(holmes_paper.cells(holmes_paper.calibrate()))
    lines = [(cell.network, cell.nodes, f"{cell.published} [R]", f"{cell.predicted:.0f}",
              "calibrated" if cell.calibrated else f"{cell.error_percent:+.1f}") for cell in cells]
    lines.append(("mean absolute of nine", "", "", "", f"{holmes_paper.mean_error_percent(cells):.1f}"))
    return table(("NICs", "nodes", "published TFLOP/s", "predicted", "error %"), lines)


def holmes_calibration() -> str:
    """Return what the three cells fix."""
    found = holmes_paper.calibrate()
    return table(("constant", "value"), [
        ("time of the GPU, relative to the A100's constants", f"{found.compute_scale:.2f}"),
        ("InfiniBand of a node, in large messages", f"{network_share('ib') * found.infiniband:.0f} Gb/s"),
        ("RoCE of a node, in large messages", f"{network_share('roce') * found.roce:.0f} Gb/s"),
        ("Ethernet of a node, in large messages, not calibrated",
         f"{network_share('ethernet') * holmes_paper.ETHERNET_GBPS:.1f} Gb/s")])


def holmes_frameworks() -> str:
    """Return Figure 6's ratios and the ablation."""
    calibration = holmes_paper.calibrate()
    ours = holmes_paper.group_3("Holmes", calibration)
    lines = []
    for name, published in holmes_paper.ABLATION.items():
        found = holmes_paper.group_3(name, calibration)
        lines.append((name, f"{published} [R]", f"{found:.0f}",
                      f"{holmes_paper.ABLATION['Holmes'] / published:.2f} [R]", f"{ours / found:.2f}"))
    for name, ratio in holmes_paper.FIGURE_6.items():
        found_ratio = ("not modelled" if name == "Megatron-DeepSpeed"
                       else f"{ours / holmes_paper.group_3(name, calibration):.2f}")
        lines.append((f"Figure 6: {name}", "", "", f"{ratio:.2f}", found_ratio))
    return table(("group 3, 4 + 4 nodes", "published TFLOP/s", "predicted", "Holmes over it, published",
                  "predicted"), lines)


def holmes_contradictions() -> str:
    """Return the cells that contradict each other."""
    return "\n".join(f"- {line}" for line in holmes_paper.CONTRADICTIONS)


def constants() -> str:
    """Return the constants of every GPU kind."""
    return table(("GPU", "processors", "matrix share", "ramp", "memory share", "attention share", "ring share"),
                 [(name, kind.processors, kind.matrix_share, f"{kind.ramp:.0f}", kind.memory_share,
                   kind.attention_share, kind.ring_share) for name, kind in gpu_constants.CONSTANTS.items()])


TABLES: Mapping[str, Callable[[], str]] = {
    "summary": summary, "sc21": sc21_rows, "fitted": fitted_rows, "multi": multi_rows,
    "multi_worst": worst_multi_rows, "single": single_rows, "h100": h100_rows, "memory": memory_rows,
    "holmes": holmes_rows, "holmes_calibration": holmes_calibration, "holmes_frameworks": holmes_frameworks,
    "holmes_contradictions": holmes_contradictions, "constants": constants, "public": accuracy_public.public_rows,
    "families": accuracy_public.families, "orders": accuracy_public.orders, "parts": accuracy_public.engine_parts,
}


def filled(page: str) -> str:
    """Return a page with every `<!-- table NAME -->` ... `<!-- end -->` made again."""
    def replacement(match: re.Match[str]) -> str:
        return f"<!-- table {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->"
    return re.sub(r"<!-- table (\w+) -->\n.*?<!-- end -->", replacement, page, flags=re.DOTALL)


def main() -> None:
    """Print the tables, or write them into the page."""
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into docs/accuracy.md")
    if parser.parse_args().write:
        PAGE.write_text(filled(PAGE.read_text()))
        return
    for name, make in TABLES.items():
        print(f"## {name}\n\n{make()}\n")


if __name__ == "__main__":
    main()
