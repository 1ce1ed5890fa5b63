"""Sketches: a layer's rows, projected at random onto a few numbers, in given input coordinates.

A row over thousands of inputs becomes `SKETCH` numbers. Proportional rows have proportional sketches, with the same
factor; other rows do not, except with vanishing probability. Columns of one coordinate share a random vector, so what
cancels in the network cancels in the sketch, and no merged weight has to be written to compare rows. Products are taken
in the weights' own precision, where they stand, and added up in float64; what is decided on a sketch is decided in
float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from canon.describe.coordinates import Coordinates
from canon.graph import ChannelGraph, LinearMap

SKETCH = 16
"""Numbers per sketch."""

STRETCH = 2048
"""Entries of a row that are multiplied and added up in the weight's own precision."""

PIECE = 1 << 18
"""Weights squared or converted at a time: what a core's cache holds."""


@dataclass(frozen=True, eq=False)
class RowSketch:
    """What is known of a layer's rows."""

    vectors: Tensor
    """`rows x SKETCH`, float64."""

    mass: Tensor
    """Norm of what was added up in each row: a sum that is small against it has cancelled."""

    offset: Tensor
    """What constant inputs and the bias add to each row."""

    offset_mass: Tensor
    """Sum of the magnitudes in `offset`."""


@dataclass(frozen=True, eq=False)
class _Columns:
    """A layer's input axis in coordinates."""

    index: Tensor
    size: int
    factor: Tensor
    constant: Tensor
    """Value of each entry that is constant and may be counted as an offset; zero elsewhere."""


def sketch_rows(
    linear: LinearMap,
    graph: ChannelGraph,
    tensors: Mapping[str, Tensor],
    coordinates: Mapping[int, Coordinates],
    seed: int,
) -> RowSketch:
    """Sketch the rows of one layer.

    Args:
        linear: The layer.
        graph: The graph it belongs to.
        tensors: The model's tensors by name.
        coordinates: By space id; must hold every space that the layer reads.
        seed: Layers with the same seed and coordinates have comparable sketches.
    """
    weight = tensors[linear.weight].detach()
    rows = weight.movedim((linear.row_axis, linear.column_axis), (0, 1))
    count, inputs, kernel = rows.shape[0], rows.shape[1], prod(rows.shape[2:])
    groups, length = linear.groups, inputs * kernel
    columns = _columns(linear, inputs * groups, coordinates)
    flat = rows.reshape(groups, count // groups, length)
    generator = torch.Generator().manual_seed(seed)
    shape = (max(columns.size, 1), kernel * SKETCH)
    table = torch.randn(shape, generator=generator, dtype=torch.float64)
    # Factors grow from layer to layer; taken relative to the largest they cannot overflow in float32.
    largest = float(columns.factor.abs().max()) or 1.0
    factor = columns.factor / largest
    picked = table[columns.index.clamp(min=0)] * factor[:, None]
    vectors = largest * _project(flat, picked.view(groups, length, SKETCH))
    mass = largest * _mass(flat, factor.repeat_interleave(kernel).view(groups, length, 1))
    offset = torch.zeros(count, dtype=torch.float64)
    offset_mass = torch.zeros_like(offset)
    if bool((columns.constant != 0).any()):
        constant = columns.constant.repeat_interleave(kernel).view(groups, length, 1)
        offset, offset_mass = (_weigh(flat, constant, signed) for signed in (True, False))
    if linear.bias is not None:
        bias = tensors[linear.bias].detach().double().cpu()
        offset, offset_mass = offset + bias, offset_mass + bias.abs()
    return RowSketch(vectors, mass, offset, offset_mass)


def _project(flat: Tensor, picked: Tensor) -> Tensor:
    """`rows x SKETCH`: products in the weight's precision over short stretches, added up in float64."""
    wide = torch.promote_types(flat.dtype, torch.float32)
    picked = picked.to(device=flat.device, dtype=wide)
    total = torch.zeros(*flat.shape[:2], SKETCH, dtype=torch.float64, device=flat.device)
    for start in range(0, flat.shape[2], STRETCH):
        stretch = slice(start, start + STRETCH)
        total += flat[:, :, stretch].to(wide) @ picked[:, stretch]
    return total.view(-1, SKETCH).cpu()


def _mass(flat: Tensor, factor: Tensor) -> Tensor:
    """`√Σ(factor·w)²` for every row."""
    if bool((factor == 1).all()):
        wide = torch.promote_types(flat.dtype, torch.float32)
        norm: Tensor = torch.linalg.vector_norm(flat, dim=-1, dtype=wide)
        return norm.double().flatten().cpu()
    squared = factor.square().to(flat.device)
    lowest, highest = torch.aminmax(flat)
    largest = max(-float(lowest), float(highest))
    # A weight on a silent input may be anything, and its square then overflows in float32.
    wide = torch.promote_types(flat.dtype, torch.float32 if largest < 1e15 else torch.float64)
    squared = squared.to(wide)
    pieces = [piece.to(wide).square() @ squared for piece in flat.split(_step(flat), dim=1)]
    return torch.cat(pieces, dim=1).double().sqrt().flatten().cpu()


def _weigh(flat: Tensor, constant: Tensor, signed: bool) -> Tensor:
    """What constant inputs add up to in every row, or the sum of the magnitudes."""
    constant = constant.to(flat.device)
    pieces = []
    for piece in flat.split(_step(flat), dim=1):
        wide = piece.double()
        pieces.append(wide @ constant if signed else wide.abs() @ constant.abs())
    return torch.cat(pieces, dim=1).flatten().cpu()


def _step(flat: Tensor) -> int:
    return max(1, PIECE // max(1, flat.shape[0] * flat.shape[2]))


def _columns(linear: LinearMap, length: int, coordinates: Mapping[int, Coordinates]) -> _Columns:
    if linear.columns is None:
        ones = torch.ones(length, dtype=torch.float64)
        return _Columns(torch.arange(length), length, ones, torch.zeros_like(ones))
    index, factor, constant, size = [], [], [], 0
    for segment in linear.columns:
        space = coordinates[segment.space]
        repeat = segment.repeat
        known = space.constants.get(segment.point)
        scale = space.factor(segment.tap)
        value = torch.zeros_like(scale)
        if known is not None and not linear.zero_padding:
            is_constant = ~known.isnan()
            value = torch.where(is_constant, known, value)
            scale = torch.where(is_constant, torch.zeros_like(scale), scale)
        inner = torch.arange(repeat)
        named = space.index[:, None] * repeat + inner + size
        index.append(torch.where(space.index[:, None] < 0, -1, named).flatten())
        factor.append(scale.repeat_interleave(repeat))
        constant.append(value.repeat_interleave(repeat))
        size += space.size * repeat
    return _Columns(torch.cat(index), size, torch.cat(factor), torch.cat(constant))
