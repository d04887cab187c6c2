"""Finished and running runs as pandas tables and pictures.

    import analysis
    steps = analysis.load("runs/mixed")          # one row a step and run
    table = analysis.runs("runs")                # one row a run
    steps.groupby("run").loss.last()

`python -m analysis.throughput RUN...` prints the tables and draws the pictures.
"""

from analysis.by_rank import by_rank
from analysis.disturbed import disturbed
from analysis.matplotlib_log import keep_quiet_of_folders
from analysis.tables import links, load, ranks, runs

__all__ = ["by_rank", "disturbed", "links", "load", "ranks", "runs"]

keep_quiet_of_folders()
