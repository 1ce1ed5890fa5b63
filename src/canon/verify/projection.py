"""Fewer numbers per channel: what a layout key keeps of a description."""

from __future__ import annotations

import torch
from torch import Tensor


def project(features: Tensor, numbers: int, seed: int) -> Tensor:
    """Random projection to `numbers` columns; 0 leaves the features as they are."""
    if numbers == 0:
        return features
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(features.shape[1], numbers, generator=generator, dtype=torch.float64)
    table /= numbers**0.5
    return features @ table
