"""Sketches: a layer's rows, projected at random onto a few numbers, in given input coordinates.

A row over thousands of inputs becomes `SKETCH` numbers. Proportional rows have proportional sketches, with the same
factor; other rows do not, except with vanishing probability. Columns of one coordinate share a random vector, so what
cancels in the network cancels in the sketch, and no merged weight has to be written to compare rows. Each weight is
read once, in float64, in pieces that fit the cache.
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

PIECE = 1 << 21
"""Weights converted to float64 at a time."""


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
    columns = _columns(linear, inputs * linear.groups, coordinates)
    device = weight.device
    generator = torch.Generator().manual_seed(seed)
    shape = (max(columns.size, 1), kernel * SKETCH)
    table = torch.randn(shape, generator=generator, dtype=torch.float64)
    picked = table[columns.index.clamp(min=0)].view(linear.groups, inputs * kernel, SKETCH)
    picked = picked.to(device)
    factor = columns.factor.repeat_interleave(kernel).view(linear.groups, 1, inputs * kernel)
    factor = factor.to(device)
    unit = bool((factor == 1).all())
    constant = columns.constant.repeat_interleave(kernel).view(linear.groups, inputs * kernel, 1)
    constant = constant.to(device)
    any_constant = bool((constant != 0).any())
    flat = rows.reshape(linear.groups, count // linear.groups, inputs * kernel)
    vectors = torch.empty(linear.groups, flat.shape[1], SKETCH, dtype=torch.float64, device=device)
    mass = torch.empty(linear.groups, flat.shape[1], dtype=torch.float64, device=device)
    offset, offset_mass = torch.zeros_like(mass), torch.zeros_like(mass)
    step = max(1, PIECE // max(1, linear.groups * inputs * kernel))
    for start in range(0, flat.shape[1], step):
        end = min(start + step, flat.shape[1])
        piece = flat[:, start:end].double()
        if any_constant:
            offset[:, start:end] = (piece @ constant).squeeze(-1)
            offset_mass[:, start:end] = (piece.abs() @ constant.abs()).squeeze(-1)
        if not unit:
            piece = piece * factor
        vectors[:, start:end] = piece @ picked
        mass[:, start:end] = piece.square().sum(-1).sqrt()
    offset, offset_mass = offset.flatten(), offset_mass.flatten()
    if linear.bias is not None:
        bias = tensors[linear.bias].detach().double()
        offset, offset_mass = offset + bias, offset_mass + bias.abs()
    return RowSketch(vectors.view(count, SKETCH).cpu(), mass.flatten().cpu(), offset.cpu(), offset_mass.cpu())


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
