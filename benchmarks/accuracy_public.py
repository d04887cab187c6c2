"""The tables of `docs/accuracy.md` on public runs of many trainers and GPU kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from benchmarks.left_out import FAMILIES, all_series, family_errors, fits_with, fitted_share, left_out_errors
from benchmarks.order import problems, regret_percent, tau
from benchmarks.public_runs import public_runs
from benchmarks.published import Row, vtrain_multi
from benchmarks.tables import table
from holmes_hpc.planner.cost.gpu_constants import CONSTANTS
from holmes_hpc.planner.software import ENGINE, Software

PARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("fused attention core", ("fused_attention",)),
    ("no dropout", ("dropout",)),
    ("products of queries, keys and values apart", ("fused_projections",)),
    ("bias inside the product; SwiGLU's gate (not in these models)", ("fused_bias", "fused_activation")),
    ("launches", ("forward_kernels", "backward_kernels")),
    ("cross entropy", ("loss_bytes",)),
    ("transfers that do not block, whole instead of split", ("blocking_transfers", "split_transfers")),
    ("gradients of float32, optimizer", ("gradient_bytes", "optimizer_bytes")),
    ("sums over tensor ranks not overlapped", ("overlapped_collectives",)),
)
"""From a trainer of published rows to our engine, part by part, in this order."""
EXPLAINED = ("h12288 l96 t8 d8 p8 b3 B1536", "h8192 l48 t8 d16 p4 b3 B1536", "h6144 l40 t8 d32 p1 b8 B1024",
             "h3072 l30 t1 d64 p1 b8 B512")
"""Rows of vTrain's whose difference is explained."""


def public_rows() -> str:
    """Return every public series, predicted by the others of its GPU family."""
    lines = []
    for each in all_series():
        if each.name in public_runs():
            errors = left_out_errors(each)
            lines.append((each.family, each.name, len(errors), f"{fmean(map(abs, errors)):.1f}",
                          f"{fmean(errors):+.1f}", f"{max(map(abs, errors)):.0f}"))
    return table(("family", "series left out", "rows", "mean error %", "bias %", "largest %"), sorted(lines))


def families() -> str:
    """Return what each family's series fix, and its errors with each series left out."""
    lines = []
    for family, kinds in FAMILIES.items():
        errors, fixing = family_errors(family), fits_with(family)
        lines.append((family, len(errors), f"{fmean(map(abs, errors)):.1f}", f"{fmean(errors):+.1f}",
                      f"{fitted_share(fixing):.3f}", CONSTANTS[kinds[0]].matrix_share,
                      f"{sum(len(each.rows) for each in fixing)} in {len(fixing)}"))
    return table(("family", "public rows", "mean error %", "bias %", "matrix share fitted on all", "taken",
                  "fixed by rows in series"), lines)


def orders() -> str:
    """Return how well predictions order layouts of one problem."""
    lines = []
    for source, rows in (("vTrain, many nodes", vtrain_multi()), *public_runs().items()):
        lines += [(source, name, len(pairs), f"{tau(pairs):.2f}", f"{regret_percent(pairs):.1f}")
                  for name, pairs in problems(rows).items()]
    return table(("series", "model and GPUs", "layouts", "Kendall's tau", "regret %"), lines)


def engine_parts() -> str:
    """Return what our engine's step would be in the place of published ones, part by part."""
    rows = [row for name in EXPLAINED for row in vtrain_multi() if row.name == name][:len(EXPLAINED)]
    steps = [list(_steps(row)) for row in rows]
    lines = [(words, *(f"{100 * (each[at] / each[at - 1] - 1):+.1f}" if at else f"{each[0]:.2f} s" for each in steps))
             for at, words in enumerate(["predicted of the trainer that made the row", *(name for name, _ in PARTS)])]
    lines.append(("all: predicted of our engine, against the trainer",
                  *(f"{100 * (each[-1] / each[0] - 1):+.1f}" for each in steps)))
    return table(("part, change of the step in %", *(row.name for row in rows)), lines)


def _steps(row: Row) -> Iterator[float]:
    software: Software = row.run.software
    yield row.run.seconds
    for _, fields in PARTS:
        software = replace(software, **{name: getattr(ENGINE, name) for name in fields})
        yield replace(row.run, software=software).seconds


def unlike_engine(software: Software) -> Sequence[str]:
    """Return the fields in which a trainer and our engine differ and which no part names."""
    named = {name for _, fields in PARTS for name in fields}
    return [name for name in vars(software) if getattr(software, name) != getattr(ENGINE, name) and name not in named]
