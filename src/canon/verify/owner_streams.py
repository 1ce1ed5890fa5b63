"""A suspect's residual streams in the owner's basis, known by embeddings, whose rows stand where ids say.

The turn is the orthogonal matrix that brings the suspect's embedding nearest to the owner's; strangers' embeddings,
with more rows than channels, come nowhere near. It and the factors behind the owner's norms are all that is taken from
the owner, as order and scales are. Layers that read take both back, so that no output changes, which is tried.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from canon.errors import CanonError
from canon.graph.inputs import fitting
from canon.graph.streams import Stream, streams_of
from canon.rewrite.streams import turn_stream
from canon.verify.function import outputs_of
from canon.verify.precision import coarsest
from canon.verify.traced import Traced

STILL: Final = 0.9
"""A channel whose entry in a turn is so large may only have changed places."""

BETTER: Final = 0.5
"""A turn that leaves more than this of what an order leaves says nothing: what is left is noise or training."""

PRODUCTS: Final = 256
"""About so many rows have their products looked at first."""

SAME: Final = 1e-6
"""Embeddings no farther from the owner's than this stand in the owner's basis already."""

ROWS: Final = 2
"""Least rows of an embedding for each channel: with fewer, some turn brings any embedding near to any other."""

ALIKE: Final = 0.8
"""Least cosine of embeddings once they are turned; strangers with so many rows reach 0.6."""

MOVED: Final = 1e-3
ROUNDINGS: Final = 8
"""Outputs may move by so much of their size when bases change, or by so many roundings of the suspect's weights."""


def in_owner_streams(model: nn.Module, owner: Traced) -> nn.Module:
    """The model, or a copy with turned streams in the owner's basis.

    Args:
        model: The suspect, under the owner's names. It is not changed.
        owner: The owner's model.
    """
    for stream in streams_of(owner.graph):
        traced = Traced.of(model, fitting(owner.example, model))
        same = next((one for one in streams_of(traced.graph) if one == stream), None)
        if same is None:
            continue
        gains = {name: owner.tensors[name] for name in stream.gains}
        turn = _turn(stream, traced, owner)
        if turn is None or any(bool((gain == 0).any()) for gain in gains.values()):
            continue
        turned = turn_stream(model, traced.graph, stream, turn, gains)
        model = turned if same_function(turned, traced) else model
    return model


def _turn(stream: Stream, ours: Traced, theirs: Traced) -> Tensor | None:
    """The orthogonal matrix from our basis to theirs; None: they do not tell one, or but an order."""
    name, axis = stream.tables[0]
    mine, yours = (side.tensors[name].detach().double().movedim(axis, 0) for side in (ours, theirs))
    if mine.ndim != 2 or yours.ndim != 2 or len(mine) != len(yours):
        return None
    rows = min(mine.shape[1], yours.shape[1])  # a vocabulary grows at its end
    if rows < ROWS * len(mine):
        return None
    # What all rows have in common is one direction, which some turn brings to any other.
    mine, yours = (table[:, :rows] - table[:, :rows].mean(1, keepdim=True) for table in (mine, yours))
    apart, same = float((mine - yours).norm()), SAME * float(yours.norm())
    if apart <= same or _left(mine, yours) > BETTER * apart:
        return None
    left, _, right = torch.linalg.svd(yours @ mine.T)
    turn: Tensor = left @ right
    order = (turn >= STILL).double()
    apart, turned = (float((one @ mine - yours).norm()) for one in (order, turn))
    if apart <= same or turned > BETTER * apart:
        return None
    cosine = nn.functional.cosine_similarity((turn @ mine).flatten(), yours.flatten(), dim=0)
    return turn if float(cosine) >= ALIKE else None


def _left(mine: Tensor, yours: Tensor) -> float:
    """About what any turn leaves: some products of rows tell, which none changes, much sooner than the best turn."""
    some = slice(None, None, -(-mine.shape[1] // PRODUCTS))
    ours, theirs = (table[:, some].T @ table[:, some] for table in (mine, yours))
    size = float(theirs.norm())
    seen = (2 * len(theirs) / (len(mine) + len(theirs))) ** 0.5  # of independent changes of all entries
    return float((ours - theirs).norm()) / size / seen * float(yours.norm()) if size else 0.0


def same_function(changed: nn.Module, traced: Traced) -> bool:
    """Whether a changed model gives what it gave, on the example."""
    call = traced.example if isinstance(traced.example, tuple) else (traced.example,)
    try:
        before, after = (outputs_of(model, [call]) for model in (traced.model, changed))
    except CanonError:
        return False
    allowed = max(MOVED, ROUNDINGS * torch.finfo(coarsest(traced.model)).eps)
    pairs = [(a, b) for a, b in zip(before.parts, after.parts, strict=True) if a.numel()]
    return all(bool((a - b).abs().max() <= allowed * a.abs().max()) for a, b in pairs)


__all__ = ["in_owner_streams", "same_function"]
