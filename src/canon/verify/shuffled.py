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

CHANNELS: Final = 16
"""Input channels from which on they can be put in another order that has nothing to do with theirs."""

COMPARED: Final = 1024
"""Rows that they are compared with at most."""


def shuffled_cosine(linear: LinearMap, tensors: Mapping[str, Tensor]) -> float:
    """The cosine that shuffled rows reach with some row of the layer; 1 where finding a row shows nothing."""
    rows = tensors[linear.weight].detach().movedim(linear.row_axis, 0)
    length = rows[0].numel()
    if length < 2:
        return 1.0
    generator = torch.Generator().manual_seed(length)
    order = torch.randperm(len(rows), generator=generator)
    picked, norms = _not_zero(rows, order[:COMPARED])
    if len(picked) < min(COMPARED, len(rows)):
        picked, norms = _not_zero(rows, order)
    if not len(picked):
        return 1.0
    picked, norms = picked[:COMPARED], norms[:COMPARED]
    compared = len(picked)
    entries = torch.randperm(length, generator=generator)
    kernel = _kernel(rows)
    orders = [entries]
    if length // kernel >= CHANNELS:  # kernels of other channels, as they are: the middle of each may hold all there is
        channels = torch.randperm(length // kernel, generator=generator)
        orders.append((channels[:, None] * kernel + torch.arange(kernel)).flatten())
    unit = picked[:SAMPLE] / norms[:SAMPLE, None]
    reached = max(float((unit[:, o] @ picked.T).abs_().div_(norms).amax(dim=1).median()) for o in orders)
    usual = (1 - compared ** (-2 / max(1, length - 1))) ** 0.5
    # Random rows reach the usual. Far beyond it, rows are alike wherever their numbers stand.
    return 1.0 if reached >= (1 + usual) / 2 else reached


def _kernel(rows: Tensor) -> int:
    """Places of a kernel, which stand side by side in a flat row."""
    return rows[0, 0].numel() if rows.ndim > 2 else 1


def _not_zero(rows: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Those of some rows that are not zero, flat and in float32, and their norms."""
    flat = rows[chosen.to(rows.device)].flatten(1).float().cpu()
    norms = flat.norm(dim=1)
    here = norms > 0
    return (flat, norms) if bool(here.all()) else (flat[here], norms[here])
