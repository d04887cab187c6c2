"""Nodes, NICs, GPUs, fabrics and the links between them; Slurm's node lists."""

from holmes_hpc.cluster.cluster import ClusterDescription, FabricLink, Node
from holmes_hpc.cluster.gpus import GPUS, Gpu, gpu
from holmes_hpc.cluster.hostlist import HostlistError, expand_hostlist
from holmes_hpc.cluster.machine import LinkRate, Machine
from holmes_hpc.cluster.nics import NICS, Nic, nic
from holmes_hpc.cluster.read import read_cluster

__all__ = ["GPUS", "NICS", "ClusterDescription", "FabricLink", "Gpu", "HostlistError", "LinkRate", "Machine",
           "Nic", "Node", "expand_hostlist", "gpu", "nic", "read_cluster"]
