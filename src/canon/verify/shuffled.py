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
    used = torch.nonzero(norms > 0).flatten()
    if not len(used) or rows.shape[1] < 2:
        return 1.0
    generator = torch.Generator().manual_seed(rows.shape[1])
    chosen = used[torch.randperm(len(used), generator=generator)]
    some = chosen[:SAMPLE]
    moved = (rows[some] / norms[some, None])[:, torch.randperm(rows.shape[1], generator=generator)]
    compared = min(len(used), COMPARED)
    if compared < len(rows):  # otherwise all of them, where they stand
        rows, norms = rows[chosen[:compared]], norms[chosen[:compared]]
    cosine = (moved @ rows.T).abs_().div_(norms).amax(dim=1)
    reached = float(cosine.median())
    usual = (1 - compared ** (-2 / max(1, rows.shape[1] - 1))) ** 0.5
    # Random rows reach the usual. Far beyond it, rows are alike wherever their numbers stand.
    return 1.0 if reached >= (1 + usual) / 2 else reached
