"""Sketches: a layer's rows, projected at random onto a few numbers, in given input coordinates.

A row over thousands of inputs becomes a few numbers. Proportional rows have proportional sketches, with the same
factor; other rows do not, except with vanishing probability. Columns of one coordinate share a random vector, so what
cancels in the network cancels in the sketch, and no merged weight has to be written to compare rows. Products are taken
in the weights' own precision, where they stand, and added up in float64; what is decided on a sketch is decided in
float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from canon._memory import scratch
from canon.describe.arrays import Array
from canon.describe.coordinates import Coordinates
from canon.errors import UnsupportedModelError
from canon.graph import ChannelGraph, LinearMap
from canon.graph.tensors import not_finite
from canon.transforms import entries

SKETCH = 16
"""Numbers per sketch."""

STRETCH = 2048
"""Entries of a row that are multiplied and added up in the weight's own precision."""

PIECE = 1 << 18
"""Weights squared or converted at a time on the host: what a core's cache holds."""

PIECE_ON_DEVICE = 1 << 26
"""The same on a device, where every step costs a launch."""


CHANCE = 1e-5
"""How likely it may be that random numbers of a layer look as if they were equal, or cancelled."""

LOUD = 30.0
"""How much louder than the rest of a row that may be which cancels in it."""

ROUNDING = 32 * 2.0**-23
"""What rounding explains is not put down to chance."""


def nearest(width: int, freedom: int) -> float:
    """How near the nearest two of so many directions may come by chance, with so many numbers that vary freely.

    That `n` numbers agree within `ε` has a probability of about `εⁿ`: with hundreds of them a hundredth is beyond all
    chance, with two it is not.
    """
    return float((CHANCE / width**2) ** (1 / max(1, freedom)))


@dataclass(frozen=True, eq=False)
class RowSketch:
    """What is known of a layer's rows."""

    vectors: Array
    """`rows x numbers`, float64."""

    mass: Array
    """Norm of what was added up in each row: a sum that is small against it has cancelled."""

    offset: Array
    """What constant inputs and the bias add to each row."""

    offset_mass: Array
    """Sum of the magnitudes in `offset`."""

    has_offset: bool = True
    """Whether constant inputs or a bias add anything at all."""

    freedom: int = 1 << 20
    """How many numbers of a row vary freely."""

    def silent(self, size: Array, mass: Array, zero: float) -> Array:
        """Where a sum has cancelled: it is small against what was added up, and not by chance.

        Args:
            size: Norms of sums.
            mass: Norms of what was added up in each.
            zero: What counts as cancelled, relative to what was added up.
        """
        chance = max(nearest(len(self.mass), self.freedom) / LOUD, ROUNDING)
        return np.asarray(size <= min(zero, chance) * mass)


@dataclass(frozen=True, eq=False)
class Columns:
    """A layer's input axis in coordinates."""

    index: Array
    size: int
    factor: Array | None
    """Factor of each entry; None: all are 1."""

    constant: Array | None
    """Value of each entry that is constant and may be counted as an offset, zero elsewhere; None: there are none."""


def sketch_rows(
    linear: LinearMap,
    graph: ChannelGraph,
    tensors: Mapping[str, Tensor],
    coordinates: Mapping[int, Coordinates],
    seed: int = 0,
    numbers: int = SKETCH,
) -> RowSketch:
    """Sketch the rows of one layer.

    Args:
        linear: The layer.
        graph: The graph it belongs to.
        tensors: The model's tensors by name.
        coordinates: By space id; must hold every space that the layer reads.
        seed: Layers with the same seed and coordinates have comparable sketches.
        numbers: Numbers per sketch. Where rows are only alike and not proportional, more of them tell more rows apart.

    Raises:
        UnsupportedModelError: The weight holds NaN or infinity.
    """
    weight = tensors[linear.weight].detach()
    rows = weight.movedim((linear.row_axis, linear.column_axis), (0, 1))
    count, inputs, kernel = rows.shape[0], rows.shape[1], prod(rows.shape[2:])
    groups, length, device = linear.groups, inputs * kernel, weight.device
    columns = columns_in(linear, inputs * groups, coordinates)
    flat = rows.reshape(groups, count // groups, length)
    wide = torch.promote_types(weight.dtype, torch.float32)
    per_column = kernel * numbers
    picked = _strip(1 << (columns.size * per_column - 1).bit_length(), seed, wide, device)
    picked = picked[: columns.size * per_column].view(columns.size, per_column)
    factor, largest = None, 1.0
    if columns.factor is not None:
        # Factors grow from layer to layer; taken relative to the largest they cannot overflow in float32.
        largest = float(np.abs(columns.factor).max()) or 1.0
        factor = torch.from_numpy(columns.factor / largest).to(device)
        index, room = torch.from_numpy(columns.index).to(device), scratch((inputs * groups, per_column), wide, device)
        picked = torch.index_select(picked, 0, index, out=room).mul_(factor.to(wide)[:, None])
        factor = factor.repeat_interleave(kernel).view(groups, length, 1)
    parts = _summed_up(flat, picked.view(groups, length, numbers), factor, wide)
    if columns.constant is not None:
        constant = torch.from_numpy(columns.constant).to(device).repeat_interleave(kernel).view(groups, length, 1)
        parts += [_weigh(flat, constant, signed)[:, None] for signed in (True, False)]
    if linear.bias is not None:
        parts.append(tensors[linear.bias].detach().double().to(device)[:, None])
    # One transfer from a device.
    table = torch.cat(parts, dim=1).cpu().numpy()
    vectors, mass = largest * table[:, :numbers], largest * table[:, numbers]
    if not np.isfinite(mass).all():
        if not_finite([(linear.weight, weight)]):
            raise UnsupportedModelError(
                "tensor holds NaN or infinity", where=linear.weight,
                hint="The model is damaged; recovery compares weights and cannot use them",
            )  # fmt: skip
        # A weight on a silent input may be anything, and its square then overflows in float32.
        mass = largest * _mass(flat, factor, torch.float64).cpu().numpy()
    offset = offset_mass = np.zeros(count)
    if columns.constant is not None:
        offset, offset_mass = table[:, numbers + 1], table[:, numbers + 2]
    if linear.bias is not None:
        offset, offset_mass = offset + table[:, -1], offset_mass + np.abs(table[:, -1])
    has_offset = columns.constant is not None or linear.bias is not None
    return RowSketch(vectors, mass, offset, offset_mass, has_offset, columns.size * kernel // groups)


class _Stream:
    """Random numbers of one seed, drawn as far as they are asked for."""

    def __init__(self, seed: int) -> None:
        self._generator, self._lock = torch.Generator().manual_seed(seed), Lock()
        self._drawn = torch.empty(0, dtype=torch.float64)

    def first(self, length: int) -> Tensor:
        """The first of them, so many as a power of two, from sixteen on: there torch goes on where it stopped."""
        with self._lock:
            more = length - self._drawn.numel()
            if more > 0:
                fresh = torch.randn(more, generator=self._generator, dtype=torch.float64)
                self._drawn = torch.cat([self._drawn, fresh])
            return self._drawn[:length]


_stream = lru_cache(maxsize=8)(_Stream)


@lru_cache(maxsize=32)
def _strip(length: int, seed: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Random numbers, drawn on the host so that one seed gives the same on every device, for every layer."""
    return _stream(seed).first(max(length, 16)).to(device=device, dtype=dtype)


def _summed_up(flat: Tensor, picked: Tensor, factor: Tensor | None, wide: torch.dtype) -> list[Tensor]:
    """Projections and norms of all rows. Of a narrow type, no more than a piece is wide at a time."""
    if flat.dtype == wide:
        # In this order: norms are computed in the scratch memory that the projection lies in.
        return [_project(flat, picked), _mass(flat, factor, wide)[:, None]]
    squared = torch.ones(flat.shape[0], flat.shape[2], 1, dtype=wide, device=flat.device)
    squared = squared if factor is None else factor.square().to(wide)
    found, step = [], step_of(flat)
    room = torch.empty(flat.shape[0], min(step, flat.shape[1]), flat.shape[2], dtype=wide, device=flat.device)
    for piece in flat.split(step, dim=1):
        same = room[:, : piece.shape[1]].copy_(piece)
        projected = _project(same, picked).view(*same.shape[:2], -1)
        found.append(torch.cat([projected, (same.square_() @ squared).double().sqrt()], dim=2))
    return [torch.cat(found, dim=1).flatten(0, 1)]


def _project(flat: Tensor, picked: Tensor) -> Tensor:
    """`rows x numbers`: products in the weight's precision over short stretches, added up in float64."""
    wide, numbers = picked.dtype, picked.shape[2]
    total = torch.zeros(*flat.shape[:2], numbers, dtype=torch.float64, device=flat.device)
    for start in range(0, flat.shape[2], STRETCH):
        stretch = slice(start, start + STRETCH)
        total += flat[:, :, stretch].to(wide) @ picked[:, stretch]
    return total.view(-1, numbers)


def _mass(flat: Tensor, factor: Tensor | None, wide: torch.dtype) -> Tensor:
    """`√Σ(factor·w)²` for every row, squared and added up in `wide`."""
    if factor is None:
        norm: Tensor = torch.linalg.vector_norm(flat, dim=-1, dtype=wide)
        return norm.double().flatten()
    squared, step = factor.square().to(wide), step_of(flat)
    room = scratch((flat.shape[0], min(step, flat.shape[1]), flat.shape[2]), wide, flat.device)
    pieces = []
    for piece in flat.split(step, dim=1):
        same = piece.to(wide)
        pieces.append(torch.mul(same, same, out=room[:, : same.shape[1]]) @ squared)
    return torch.cat(pieces, dim=1).double().sqrt().flatten()


def _weigh(flat: Tensor, constant: Tensor, signed: bool) -> Tensor:
    """What constant inputs add up to in every row, or the sum of the magnitudes."""
    pieces = []
    for piece in flat.split(step_of(flat), dim=1):
        wide = piece.double()
        pieces.append(wide @ constant if signed else wide.abs() @ constant.abs())
    return torch.cat(pieces, dim=1).flatten()


def step_of(flat: Tensor) -> int:
    """Rows of `groups x rows x entries` to work on at a time."""
    piece = PIECE if flat.device.type == "cpu" else PIECE_ON_DEVICE
    return max(1, piece // max(1, flat.shape[0] * flat.shape[2]))


def columns_in(linear: LinearMap, length: int, coordinates: Mapping[int, Coordinates]) -> Columns:
    """A layer's input axis, of so many entries, in coordinates of the spaces that it reads."""
    if linear.columns is None:
        return Columns(np.arange(length), length, None, None)
    index, factor, constant, size = [], [], [], 0
    still = False
    for segment in linear.columns:
        space, repeat = coordinates[segment.space], segment.repeat
        named, scale = space.place, space.factor(segment.tap)
        known = space.constants.get(segment.point)
        value = np.zeros(scale.size)
        if known is not None and linear.zero_padding:
            known = np.where(known == 0, known, np.nan)  # at the border, other constants are not constant
        if known is not None:
            value = np.nan_to_num(known)
            scale = np.where(np.isnan(known), scale, 0.0)
            still = still or bool(value.any())  # zeros add nothing
        if repeat > 1:
            named = entries(torch.from_numpy(named), repeat).numpy()
            scale, value = scale.repeat(repeat), value.repeat(repeat)
        index.append(named + size)
        factor.append(scale)
        constant.append(value)
        size += space.size * repeat
    whole = np.concatenate(constant) if still else None
    return Columns(np.concatenate(index), size, np.concatenate(factor), whole)
