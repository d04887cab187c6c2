"""The run folder: its layout, its writers and readers."""

from holmes_hpc.runs.folder import RunFolder
from holmes_hpc.runs.job import write_job
from holmes_hpc.runs.metrics import MetricsWriter, read_json_lines
from holmes_hpc.runs.result import heal, last_metrics, read_metrics, read_result, write_result

__all__ = ["MetricsWriter", "RunFolder", "heal", "last_metrics", "read_json_lines", "read_metrics", "read_result",
           "write_job", "write_result"]
