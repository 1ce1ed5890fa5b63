"""Inputs in another convention: colours in another order, negated, or mixed by any matrix; images turned or mirrored.

A first layer that reads `M·x` where the owner's reads `x` has no row in common with it, and behind it nothing has
coordinates. But a kernel's planes, one for every input channel, then span what the owner's span: rows are known again
by that, and all of them together tell `M`. What follows is compared as ever, with the first layer's columns as they
would read the owner's inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations, product
from typing import Final

import torch
from torch import Tensor

from canon.graph import LinearMap
from canon.rewrite import replace_tensors
from canon.verify.traced import Traced

MOST: Final = 4
"""Input channels: colours and a mask."""

PLANES_ALIKE: Final = 0.97
"""Share of what one kernel's planes span that another's must span too, both ways nearest."""

SHARE: Final = 0.3
"""Share of the owner's rows that must be known again."""

SPREAD: Final = 0.1
"""How far, typically, the matrices of single rows may be from the one of all."""

NOT_MIXED: Final = 0.02
"""A matrix this near to a multiple of the identity changes nothing."""


def in_owner_convention(suspect: Traced, owner: Traced) -> Traced | None:
    """The suspect with first layers that read the owner's inputs; None where they do, or where that cannot be told."""
    yours = {linear.weight: linear for linear in owner.graph.maps}
    changed: dict[str, Tensor] = {}
    for linear in suspect.graph.maps:
        if linear.columns is None and linear.weight in yours and linear.weight not in changed:
            weight = suspect.tensors[linear.weight].detach()
            mine, theirs = _planes(weight, linear), _planes(owner.tensors[linear.weight].detach(), yours[linear.weight])
            mixed = None if mine is None or theirs is None else _mixing(mine, theirs)
            if mixed is None or mine is None:
                return None
            rows = (
                torch.linalg.solve(mixed, mine).to(weight.dtype).view(mine.shape[0], mine.shape[1], *weight.shape[2:])
            )
            changed[linear.weight] = rows.movedim((0, 1), (linear.row_axis, linear.column_axis)).contiguous()
    return _changed(suspect, changed) if changed else None


def usual_conventions(suspect: Traced) -> Iterator[Traced]:
    """The suspect as it would take inputs in other ways: images turned or mirrored, channels in another order, negated
    or not."""
    yield from _turned(suspect)
    first = [linear for linear in suspect.graph.maps if linear.columns is None]
    weights = {linear.weight: suspect.tensors[linear.weight].detach() for linear in first}
    widths = {weights[linear.weight].shape[linear.column_axis] for linear in first}
    if len(widths) != 1 or any(linear.groups != 1 for linear in first) or not 1 <= max(widths) < MOST:
        return
    for sign, order in product((1.0, -1.0), permutations(range(max(widths)))):
        if sign < 0 or list(order) != sorted(order):
            index = torch.tensor(order)
            yield _changed(
                suspect,
                {x.weight: sign * weights[x.weight].index_select(x.column_axis, index) for x in first},
            )


def _turned(suspect: Traced) -> Iterator[Traced]:
    """Every kernel transposed, upside down, the other way round, and all of these together."""
    names = {linear.weight for linear in suspect.graph.maps}
    names |= {s.params["weight"] for space in suspect.graph.spaces for s in space.stages if s.kind == "depthwise"}
    kernels = {name: suspect.tensors[name].detach() for name in names if len(suspect.tensors[name].shape) == 4}
    if not kernels or any(kernel.shape[2] != kernel.shape[3] for kernel in kernels.values()):
        return
    for across, flips in product((False, True), ((), (2,), (3,), (2, 3))):
        if across or flips:
            yield _changed(
                suspect, {name: (k.transpose(2, 3) if across else k).flip(flips) for name, k in kernels.items()}
            )


def _changed(suspect: Traced, changed: Mapping[str, Tensor]) -> Traced:
    tensors = {name: suspect.tensors[name].detach() for name in suspect.tensors}
    changed_model = replace_tensors(suspect.model, {**tensors, **changed}, suspect.graph.orders)
    return Traced.like(changed_model, suspect.example, suspect)


def _planes(weight: Tensor, linear: LinearMap) -> Tensor | None:
    """`rows x input channels x places` of a first layer; None where it has too few places, or too many channels."""
    if weight.ndim < 3 or linear.groups != 1:
        return None
    rows = weight.movedim((linear.row_axis, linear.column_axis), (0, 1)).flatten(2).double()
    return rows if 1 < rows.shape[1] <= MOST and rows.shape[2] > 2 * rows.shape[1] else None


def _mixing(mine: Tensor, theirs: Tensor) -> Tensor | None:
    """The matrix `T` with `mine ≈ a·T·theirs` over rows that belong together, for some `a` of each row."""
    if mine.shape[1:] != theirs.shape[1:]:
        return None
    channels = mine.shape[1]
    spans = [_spans(planes) for planes in (mine, theirs)]
    alike = spans[0] @ spans[1].T / channels
    nearest = alike.argmax(dim=0)
    best = alike.amax(dim=0)
    pairs = torch.nonzero(
        (best >= PLANES_ALIKE) & (alike.argmax(dim=1)[nearest] == torch.arange(len(theirs)))
    ).flatten()
    if len(pairs) < max(channels + 1, SHARE * len(theirs)):
        return None
    each = mine[nearest[pairs]] @ torch.linalg.pinv(theirs[pairs])
    sizes = each.flatten(1).norm(dim=1)
    mixed = (each / sizes[:, None, None]).median(dim=0).values
    mixed = mixed / mixed.norm()
    spread = (each / sizes[:, None, None] - mixed).flatten(1).norm(dim=1)
    plain = torch.eye(channels, dtype=mixed.dtype) / channels**0.5
    if (
        float(spread.median()) > SPREAD
        or float((mixed - plain).norm()) <= NOT_MIXED
        or float(torch.linalg.cond(mixed)) > 1e3
    ):
        return None
    found: Tensor = mixed * sizes.log().mean().exp()
    return found


def _spans(planes: Tensor) -> Tensor:
    """For every row the projector on what its planes span, flat; zero where they are linearly dependent."""
    basis = torch.linalg.qr(planes.transpose(1, 2))
    diagonal = basis.R.diagonal(dim1=1, dim2=2).abs()
    full = diagonal.amin(dim=1) > 1e-6 * diagonal.amax(dim=1)
    flat: Tensor = (basis.Q @ basis.Q.transpose(1, 2)).flatten(1) * full[:, None]
    return flat
