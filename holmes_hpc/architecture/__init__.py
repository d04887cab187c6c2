"""What a model is, without torch: parameter names, global shapes, split dims, FLOPs and bytes by part."""

from holmes_hpc.architecture.architecture import Architecture
from holmes_hpc.architecture.parameters import ParameterInfo

__all__ = ["Architecture", "ParameterInfo"]
