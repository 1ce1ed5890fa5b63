"""Tensors whose entries have no freedom, in few numbers: embeddings, attention, tokens, recurrent weights.

Alignment has nothing to say about them, but a model is not the registered one unless they are its own. A layout key
keeps random projections of each: tensors with equal projections are equal, unless somebody knew the seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

from canon.verify.residuals import layer_weights, parameter_names
from canon.verify.traced import Traced

NUMBERS: Final = 32
"""Projections of one tensor: so many that no two unlike tensors look alike by chance."""

CHUNK: Final = 4096
"""Entries that share one stretch of random numbers."""


def fixed_tensors(traced: Traced) -> dict[str, Tensor]:
    """The tensors that the forward pass uses and that no channel of the graph goes along with."""
    known = {*parameter_names(traced.graph), *(weight for weight, _ in layer_weights(traced.graph).values())}
    rest = [name for name in traced.tensors if name not in known]
    used = set(traced.used) if rest else set()
    return {name: traced.tensors[name] for name in rest if name in used}


def fixed_projections(tensors: Mapping[str, Tensor], seed: int) -> dict[str, Tensor]:
    """By tensor: `NUMBERS` random projections of its entries, float64."""
    return {name: _project(tensor, seed + place) for place, (name, tensor) in enumerate(sorted(tensors.items()))}


def projection_residual(ours: Tensor, theirs: Tensor) -> float:
    """About the relative distance of two tensors, from their projections."""
    size = float(theirs.norm())
    gap = float((ours - theirs).norm())
    return gap / size if size > 0 else (0.0 if gap == 0 else float("inf"))


def _project(tensor: Tensor, seed: int) -> Tensor:
    whole = tensor.detach()
    flat = (torch.view_as_real(whole) if whole.is_complex() else whole).flatten().double().cpu()
    rows = -(-flat.numel() // CHUNK)
    padded = torch.nn.functional.pad(flat, (0, rows * CHUNK - flat.numel())).view(rows, CHUNK)
    generator = torch.Generator().manual_seed(seed)
    across = torch.randn(CHUNK, NUMBERS, generator=generator, dtype=torch.float64)
    along = torch.randn(rows, NUMBERS, generator=generator, dtype=torch.float64)
    return ((padded @ across) * along).sum(0)
