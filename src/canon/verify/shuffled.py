"""How like a layer's rows are to rows with the same numbers in other places: what a stranger of that kind would reach.

Rows of random numbers are unlike any shuffled ones. Rows that are nearly zero but for one entry (identity matrices,
one-hot codes) are like some shuffled row whatever they mean, so finding them in a suspect shows nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from canon.graph import LinearMap

SAMPLE: Final = 64
"""Rows that are shuffled."""

COMPARED: Final = 1024
"""Rows that they are compared with at most."""


def shuffled_cosine(linear: LinearMap, tensors: Mapping[str, Tensor]) -> float:
    """The cosine that shuffled rows reach with some row of the layer; 1 where finding a row shows nothing."""
    weight = tensors[linear.weight].detach()
    rows = weight.movedim(linear.row_axis, 0).flatten(1).float().cpu()
    norms = rows.norm(dim=1)
    rows, norms = rows[norms > 0], norms[norms > 0]
    if not len(rows) or rows.shape[1] < 2:
        return 1.0
    unit = rows / norms[:, None]
    generator = torch.Generator().manual_seed(rows.shape[1])
    chosen = torch.randperm(len(unit), generator=generator)
    moved = unit[chosen[:SAMPLE]][:, torch.randperm(rows.shape[1], generator=generator)]
    cosine = (moved @ unit[chosen[:COMPARED]].T).abs().amax(dim=1)
    reached = float(cosine.median())
    compared = min(len(unit), COMPARED)
    usual = (1 - compared ** (-2 / max(1, rows.shape[1] - 1))) ** 0.5
    # Random rows reach the usual. Far beyond it, rows are alike wherever their numbers stand.
    return 1.0 if reached >= (1 + usual) / 2 else reached
