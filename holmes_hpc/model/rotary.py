"""Rotary positions (Su et al. 2021): the table of turns, and turning heads by it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from holmes_hpc.architecture import Architecture


def rotation_table(architecture: Architecture) -> Tensor:
    """Return cosine and sine [2, s, 1, r] in float32 of the angles of rotary positions; r elements of a head turn.

    Pair j of position p turns by p / base^(2j/r), changed as `rotary_scaling` says. Element j is paired with element
    j + r/2, as in the weights that Hugging Face distributes.
    """
    turned = architecture.rotary_size
    pairs = torch.arange(0, turned, 2, dtype=torch.float64, device="cpu")
    frequencies = _scaled(architecture.rotary_base ** (-pairs / turned), architecture)
    positions = torch.arange(architecture.sequence_length, dtype=torch.float64, device="cpu")
    angles = torch.outer(positions, frequencies).repeat(1, 2)[:, None, :]
    return torch.stack((angles.cos(), angles.sin())).float()


def rotate(heads: Tensor, rotation: Tensor) -> Tensor:
    """Turn every head [b, s, n, d] by its position, with a table [2, s, 1, r] of cosines and sines.

    Where r is less than d, the rest of each head stays as it is.
    """
    cosine, sine = rotation.to(heads.dtype)
    turned = cosine.shape[-1]
    if turned < heads.shape[-1]:
        return torch.cat((_turn(heads[..., :turned], cosine, sine), heads[..., turned:]), dim=-1)
    return _turn(heads, cosine, sine)


def _turn(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine


def _scaled(frequencies: Tensor, architecture: Architecture) -> Tensor:
    """Return the frequencies for longer samples than the model was first trained with.

    `linear` divides all (Chen et al. 2023). `llama3` divides those whose wave is longer than the first sample length
    over `rotary_low_frequency_factor`, keeps those shorter than over `rotary_high_frequency_factor`, and goes evenly
    from one to the other in between (Llama 3.1's model card).
    """
    if architecture.rotary_scaling == "none":
        return frequencies
    divided = frequencies / architecture.rotary_factor
    if architecture.rotary_scaling == "linear":
        return divided
    low, high = architecture.rotary_low_frequency_factor, architecture.rotary_high_frequency_factor
    turns = architecture.rotary_original_length * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 - kept) * divided + kept * frequencies
