"""An activation and a normalisation: squared ReLU (So et al. 2021), and division by the mean absolute value."""

from typing import Any

from holmes_hpc import extend


def squared_relu(x: Any) -> Any:
    """Return the square of the positive part."""
    return x.relu().square()


def build_absnorm(hidden_size: int, epsilon: float, bias: bool) -> Any:
    """Return the module; it has no bias, since `add_normalization` below does not say so."""
    import torch  # here, so that planning loads no torch

    class AbsNorm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(hidden_size))

        def forward(self, x: Any) -> Any:
            return self.weight * x / (x.abs().mean(-1, keepdim=True) + epsilon)

    return AbsNorm()


extend.add_activation("relu2", squared_relu)
extend.add_normalization("absnorm", build_absnorm)
