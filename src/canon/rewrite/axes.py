"""Axes of tensors: which entries belong to which channels, and weights with rows and columns in their places."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from canon.graph import LinearMap, Stage


def repeated(values: Tensor, repeat: int) -> Tensor:
    """One value per channel, for every entry of an axis."""
    return values if repeat == 1 else values.repeat_interleave(repeat)


def parameter_axis(stage: Stage, role: str) -> int:
    """The channel axis of a stage's parameter."""
    return 0 if stage.kind != "shift" and role == "bias" else stage.axis


def by_row(weight: Tensor, linear: LinearMap) -> Tensor:
    """A weight as `rows x columns x kernel`, without copying it where that can be."""
    rows = weight.detach().movedim((linear.row_axis, linear.column_axis), (0, 1))
    return rows.reshape(rows.shape[0], rows.shape[1], -1)


def side_by_side(rows: Tensor, groups: int) -> Tensor:
    """`rows x columns/groups x kernel` with the rows of all groups side by side: `rows/groups x columns x kernel`."""
    if groups == 1:
        return rows
    count, inputs, kernel = rows.shape
    grouped = rows.view(groups, count // groups, inputs, kernel).transpose(0, 1)
    return grouped.reshape(count // groups, groups * inputs, kernel)


def apart(rows: Tensor, groups: int) -> Tensor:
    """What `side_by_side` was made from."""
    if groups == 1:
        return rows
    count, inputs, kernel = rows.shape
    return rows.view(count, groups, inputs // groups, kernel).transpose(0, 1).reshape(groups * count, -1, kernel)


def columns_of(weight: Tensor, linear: LinearMap, offset: int, length: int) -> Tensor:
    """Some columns as `rows x columns x kernel`; the rows of a grouped layer lie side by side."""
    return side_by_side(by_row(weight, linear), linear.groups)[:, offset : offset + length]


def kernel_of(shape: Sequence[int], linear: LinearMap) -> tuple[int, ...]:
    """The kernel's part of a weight's shape."""
    return tuple(size for axis, size in enumerate(shape) if axis not in (linear.row_axis, linear.column_axis))
