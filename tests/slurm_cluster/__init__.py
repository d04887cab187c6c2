"""A real Slurm in network namespaces with shaped NICs, for the tests and for people who try things out."""

from tests.slurm_cluster.available import unavailable_reason
from tests.slurm_cluster.cluster import CommandFailedError, Finished, SlurmCluster, start_cluster
from tests.slurm_cluster.settings import ClusterSettings, NodeSettings, tree_folder

__all__ = ["ClusterSettings", "CommandFailedError", "Finished", "NodeSettings", "SlurmCluster", "start_cluster",
           "tree_folder", "unavailable_reason"]
