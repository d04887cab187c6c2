"""The run folder: its layout, its writers and readers."""

from holmes_hpc.runs.folder import RunFolder
from holmes_hpc.runs.job import describe_job, update_job, write_job
from holmes_hpc.runs.metrics import MetricsWriter, NewSteps, read_json_lines
from holmes_hpc.runs.notes import Notes, add_note
from holmes_hpc.runs.result import heal, last_metrics, read_metrics, read_result, write_result
from holmes_hpc.runs.starts import Start

__all__ = ["MetricsWriter", "NewSteps", "Notes", "RunFolder", "Start", "add_note", "describe_job", "heal",
           "last_metrics", "read_json_lines", "read_metrics", "read_result", "update_job", "write_job", "write_result"]
