"""What Slurm's programs, files and environment say, as values."""

from holmes_hpc.cluster.slurm.allocation import Allocation, Component, read_allocation, read_place
from holmes_hpc.cluster.slurm.annotate import NodeAnnotation, annotate
from holmes_hpc.cluster.slurm.jobs import JobId, SlurmJob, read_job_id, read_sacct, read_squeue, states_of_jobs
from holmes_hpc.cluster.slurm.nodes import SlurmNode, SlurmPartition, read_scontrol_nodes, read_sinfo
from holmes_hpc.cluster.slurm.records import SlurmOutputError
from holmes_hpc.cluster.slurm.settings import SlurmSettings, read_settings
from holmes_hpc.cluster.slurm.step import StepLayout, StepNode, read_step
from holmes_hpc.cluster.slurm.topology import Topology, read_topology

__all__ = ["Allocation", "Component", "JobId", "NodeAnnotation", "SlurmJob", "SlurmNode", "SlurmOutputError",
           "SlurmPartition", "SlurmSettings", "StepLayout", "StepNode", "Topology", "annotate", "read_allocation",
           "read_job_id", "read_place", "read_sacct", "read_scontrol_nodes", "read_settings",
           "read_sinfo", "read_squeue", "read_step", "read_topology", "states_of_jobs"]
