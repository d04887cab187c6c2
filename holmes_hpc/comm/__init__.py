"""Process groups, each on its own network, and the collectives and transfers that run over them."""

from holmes_hpc.comm.groups import Communicator, connect
from holmes_hpc.comm.networks import NodeNetworks
from holmes_hpc.comm.point_to_point import Transfers
from holmes_hpc.comm.reduce import GradientSum, all_reduce_scalars

__all__ = [
    "Communicator",
    "GradientSum",
    "NodeNetworks",
    "Transfers",
    "all_reduce_scalars",
    "connect",
]
