"""ChannelTransform: `y_before = M · y_after`, sparse, the one object that attack, recovery and alignment share.

A consumer follows with `W ← W·M` on its input axis. Transforms compose (`@`), stand side by side over a concatenation
(`block_sum`), and are lifted over a flatten (`lift`). A dense matrix is made only on request, for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from canon.errors import TransformError

PIECE: Final = 1 << 19
"""Weights whose columns are added up at a time on the host."""


def entries(channels: Tensor, repeat: int, offset: int = 0) -> Tensor:
    """The entries of an axis that belong to channels, `repeat` for each, counted from `offset`.

    >>> entries(torch.tensor([2, 0]), 2, 10).tolist()
    [14, 15, 10, 11]
    """
    if repeat > 1:
        channels = (channels[..., None] * repeat + torch.arange(repeat, device=channels.device)).flatten(-2)
    return channels + offset if offset else channels


@dataclass(frozen=True, eq=False)
class ChannelTransform:
    """A sparse matrix from the channels after a rewrite to the channels before it.

    >>> t = ChannelTransform.permutation([2, 0, 1])
    >>> t.dense().tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """

    before: int
    """Rows of M: channels before."""

    after: int
    """Columns of M: channels after."""

    rows: Tensor
    """Row of each entry, int64."""

    columns: Tensor
    """Column of each entry, int64, in ascending order."""

    values: Tensor
    """Each entry, float64."""

    def __post_init__(self) -> None:
        if not self.rows.shape == self.columns.shape == self.values.shape:
            raise TransformError("entries of a transform need a row, a column and a value each")

    # -- kinds -------------------------------------------------------------------------------------------------------

    @staticmethod
    def of(before: int, after: int, rows: Tensor, columns: Tensor, values: Tensor) -> ChannelTransform:
        """From entries in any order."""
        order = torch.argsort(columns, stable=True)
        parts = (part.index_select(0, order) for part in (rows, columns, values.double()))
        return ChannelTransform(before, after, *parts)

    @staticmethod
    def identity(width: int) -> ChannelTransform:
        """`M = I`."""
        index = torch.arange(width)
        return ChannelTransform(width, width, index, index, torch.ones(width, dtype=torch.float64))

    @staticmethod
    def permutation(order: Sequence[int] | Tensor) -> ChannelTransform:
        """Channel `k` after is channel `order[k]` before: `M[order[k], k] = 1`."""
        index = torch.as_tensor(order, dtype=torch.int64)
        width = index.numel()
        if not torch.equal(index.sort().values, torch.arange(width)):
            raise TransformError("a permutation names every channel once")
        ones = torch.ones(width, dtype=torch.float64)
        return ChannelTransform(width, width, index, torch.arange(width), ones)

    @staticmethod
    def scaling(scale: Sequence[float] | Tensor) -> ChannelTransform:
        """Channel `k` after is `scale[k]` times channel `k` before: `M = diag(1/scale)`."""
        values = torch.as_tensor(scale, dtype=torch.float64)
        if not bool((values.abs() > 0).all()):
            raise TransformError("a scale must not be zero")
        index = torch.arange(values.numel())
        return ChannelTransform(values.numel(), values.numel(), index, index, 1 / values)

    @staticmethod
    def selection(keep: Sequence[int] | Tensor, before: int) -> ChannelTransform:
        """Only the channels `keep` remain; the others were zero, or unread."""
        index = torch.as_tensor(keep, dtype=torch.int64)
        after = index.numel()
        ones = torch.ones(after, dtype=torch.float64)
        return ChannelTransform(before, after, index, torch.arange(after), ones)

    @staticmethod
    def merge(into: Sequence[int] | Tensor, factor: Tensor, after: int) -> ChannelTransform:
        """Channel `j` before is `factor[j]` times channel `into[j]` after; `into[j] < 0` was zero."""
        target = torch.as_tensor(into, dtype=torch.int64)
        rows = torch.nonzero(target >= 0).flatten()
        values = factor.double().index_select(0, rows)
        return ChannelTransform.of(target.numel(), after, rows, target.index_select(0, rows), values)

    @staticmethod
    def expansion(source: Sequence[int] | Tensor, share: Tensor, before: int) -> ChannelTransform:
        """Channel `source[k]` before is the sum of the shares `share[k]` of its copies `k` after."""
        rows = torch.as_tensor(source, dtype=torch.int64)
        return ChannelTransform(before, rows.numel(), rows, torch.arange(rows.numel()), share.double())

    # -- algebra -----------------------------------------------------------------------------------------------------

    def __matmul__(self, other: ChannelTransform) -> ChannelTransform:
        """First this rewrite, then the other: `y = M₁ M₂ y_after`."""
        if self.after != other.before:
            raise TransformError(
                f"cannot compose: {self.after} channels after the first rewrite, {other.before} before the second"
            )
        # Every entry (i, j) of the first meets all entries (j, k) of the second; equal (i, k) are added up.
        by_row = torch.argsort(other.rows, stable=True)
        count = torch.bincount(other.rows, minlength=other.before)
        start = torch.cumsum(count, 0) - count
        met = count[self.columns]
        left = torch.repeat_interleave(torch.arange(met.numel()), met)
        within = torch.arange(left.numel()) - (torch.cumsum(met, 0) - met)[left]
        right = by_row[start[self.columns[left]] + within]
        place = self.rows[left] * other.after + other.columns[right]
        places, slot = torch.unique(place, return_inverse=True)
        values = torch.zeros(places.numel(), dtype=torch.float64)
        values.index_add_(0, slot, self.values[left] * other.values[right])
        return ChannelTransform.of(self.before, other.after, places // other.after, places % other.after, values)

    @staticmethod
    def block_sum(blocks: Sequence[ChannelTransform]) -> ChannelTransform:
        """Side by side along a concatenation: `blkdiag(M₁, …, M_k)`."""
        before = after = 0
        rows, columns, values = [], [], []
        for block in blocks:
            rows.append(block.rows + before)
            columns.append(block.columns + after)
            values.append(block.values)
            before, after = before + block.before, after + block.after
        return ChannelTransform(before, after, torch.cat(rows), torch.cat(columns), torch.cat(values))

    def lift(self, repeat: int) -> ChannelTransform:
        """Over a flatten that repeats each channel: `M ⊗ I`."""
        if repeat == 1:
            return self
        rows, columns = entries(self.rows, repeat), entries(self.columns, repeat)
        values = self.values.repeat_interleave(repeat)
        return ChannelTransform.of(self.before * repeat, self.after * repeat, rows, columns, values)

    def weighted(self, factor: Tensor) -> ChannelTransform:
        """`diag(factor)·M`: every channel before is so many times what it was."""
        return ChannelTransform(
            self.before, self.after, self.rows, self.columns, self.values * factor.index_select(0, self.rows)
        )

    def taking(self, columns: Tensor) -> ChannelTransform:
        """With some of the channels after alone, given in ascending order."""
        place = torch.full((self.after,), -1)
        place[columns] = torch.arange(columns.numel())
        new = place.index_select(0, self.columns)
        kept = torch.nonzero(new >= 0).flatten()
        parts = (part.index_select(0, kept) for part in (self.rows, new, self.values))
        return ChannelTransform(self.before, columns.numel(), *parts)

    def inverse(self) -> ChannelTransform:
        """The transform that undoes a bijective one (permutation and scaling, composed)."""
        if self.before != self.after or self.rows.unique().numel() != self.before:
            raise TransformError("only permutations and scalings have an inverse")
        return ChannelTransform.of(self.after, self.before, self.columns, self.rows, 1 / self.values)

    # -- use ---------------------------------------------------------------------------------------------------------

    def dense(self) -> Tensor:
        """M as a matrix: the oracle of the tests."""
        matrix = torch.zeros(self.before, self.after, dtype=torch.float64, device=self.rows.device)
        return matrix.index_put_((self.rows, self.columns), self.values, accumulate=True)

    def to(self, device: torch.device) -> ChannelTransform:
        """The same, where a weight is."""
        if self.rows.device == device:
            return self
        entries = (part.to(device) for part in (self.rows, self.columns, self.values))
        return ChannelTransform(self.before, self.after, *entries)

    def apply(self, weight: Tensor, axis: int, out: Tensor | None = None, totals: Tensor | None = None) -> Tensor:
        """`W·M` along an axis: every entry is one entry as it was, times a factor, or several added up in float64.

        Args:
            weight: What is multiplied.
            axis: Along which.
            out: Where to write it.
            totals: What the sums are, where somebody has decided on that; in the order of `sums.targets`.
        """
        if weight.shape[axis] != self.before:
            raise TransformError(
                f"the transform reads {self.before} channels, axis {axis} of the weight has {weight.shape[axis]}"
            )
        if self.is_identity:
            return weight if out is None else out.copy_(weight)
        if self.rows.device != weight.device:
            return self.to(weight.device).apply(weight, axis, out, totals)
        if axis and totals is None and not self.is_gather and weight.device.type == "cpu" and weight.numel() > PIECE:
            rows = max(1, PIECE // (weight.numel() // weight.shape[0]))
            if rows < weight.shape[0]:
                whole = torch.cat([self.apply(piece, axis) for piece in weight.split(rows)])
                return whole if out is None else out.copy_(whole)
        if axis and weight.dtype in (torch.float16, torch.bfloat16) and weight.device.type == "cpu":
            # The host picks columns of 4 bytes several times as fast as columns of 2, and multiplies in float32 anyway.
            result = self.apply(weight.float(), axis, None, totals)
            return result.to(weight.dtype) if out is None else out.copy_(result)
        sums = self.sums
        if totals is None and sums.members.numel() > 8 * self.after:
            moved = weight.movedim(axis, -1).double() @ self.dense()
            result = moved.to(weight.dtype).movedim(-1, axis).contiguous()
            return result if out is None else out.copy_(result)
        fits = out is not None and out.dtype == weight.dtype
        if totals is None and sums.targets.numel():
            totals = sums.added(weight, axis)
        result = torch.index_select(weight, axis, sums.lead, out=out if fits else None)
        result = self._finished(result, axis, totals)
        return result if out is None or result is out else out.copy_(result)

    def _finished(self, picked: Tensor, axis: int, totals: Tensor | None) -> Tensor:
        """Entries that were picked, in place: times their factors, or what was added up."""
        sums = self.sums
        if sums.scale is not None:
            wide = torch.promote_types(picked.dtype, torch.float32)
            scale = sums.scale.to(wide).view(_along(axis, picked.ndim))
            picked = picked.mul_(scale) if wide == picked.dtype else picked.copy_(picked.to(wide) * scale)
        if sums.empty.numel():
            picked.index_fill_(axis, sums.empty, 0.0)
        if totals is not None and sums.targets.numel():
            picked.index_copy_(axis, sums.targets, totals.to(picked.dtype))
        return picked

    def apply_inside(self, weight: Tensor, places: Tensor, out: Tensor, totals: Tensor | None = None) -> Tensor:
        """`W·M` along the second of three axes, at some places of the third alone; written into `out`.

        Args:
            weight: What is multiplied.
            places: Of the third axis.
            out: Where to write it.
            totals: As for `apply`, at these places.
        """
        if out.dtype != weight.dtype or (totals is None and not self.is_gather):
            return self.apply(weight.index_select(2, places), 1, out, totals)
        chosen = (self.sums.lead[:, None] * weight.shape[2] + places).flatten()
        torch.index_select(weight.flatten(1), 1, chosen, out=out.flatten(1))
        return self._finished(out, 1, totals)

    def summed(self, weight: Tensor, axis: int) -> Tensor:
        """`W·M` along an axis with every entry added up, in float64."""
        picked = weight.index_select(axis, self.rows).double().mul_(self.values.view(_along(axis, weight.ndim)))
        size = [*weight.shape[:axis], self.after, *weight.shape[axis + 1 :]]
        return picked.new_zeros(size).index_add_(axis, self.columns, picked)

    @cached_property
    def sums(self) -> Sums:
        """How the entries after come about."""
        nothing = self.rows[:0]
        if self.is_gather:
            scale = None if bool((self.values == 1).all()) else self.values
            return Sums(self.rows, scale, nothing, nothing, nothing, nothing, self.values[:0])
        count = torch.bincount(self.columns, minlength=self.after)
        if not self.rows.numel():
            empty = torch.nonzero(count == 0).flatten()
            return Sums(torch.zeros_like(count), None, empty, nothing, nothing, nothing, self.values)
        first = (count.cumsum(0) - count).clamp(max=self.rows.numel() - 1)
        several = count > 1
        scale = torch.where(count == 1, self.values.index_select(0, first), 1.0)
        inside = torch.nonzero(several.index_select(0, self.columns)).flatten()
        targets = torch.nonzero(several).flatten()
        return Sums(
            self.rows.index_select(0, first),
            None if bool((scale == 1).all()) else scale,
            torch.nonzero(count == 0).flatten(),
            targets,
            count.index_select(0, targets),
            self.rows.index_select(0, inside),
            self.values.index_select(0, inside),
        )

    @cached_property
    def is_gather(self) -> bool:
        """Exactly one entry in every column."""
        return self.columns.numel() == self.after and bool((self.columns[1:] > self.columns[:-1]).all())

    @cached_property
    def is_identity(self) -> bool:
        """Nothing changes."""
        return (
            self.before == self.after
            and self.is_gather
            and bool((self.values == 1).all())
            and bool((self.rows == self.columns).all())
        )


@dataclass(frozen=True, eq=False)
class Sums:
    """How the entries of an axis come about in `W·M`."""

    lead: Tensor
    """For every entry after an entry before: the first of those that are added up."""

    scale: Tensor | None
    """Factor of every entry after that is one entry; 1 for all others. None: all are 1."""

    empty: Tensor
    """Entries after that nothing is added up in."""

    targets: Tensor
    """Entries after that are sums of several."""

    sizes: Tensor
    """For every target how many entries are added up in it."""

    members: Tensor
    """Entries before that are added up, those of the first target first."""

    factors: Tensor
    """For every member its factor."""

    def added(self, weight: Tensor, axis: int) -> Tensor:
        """The sums of all targets, in float64."""
        places = torch.repeat_interleave(torch.arange(self.sizes.numel(), device=weight.device), self.sizes)
        members = ChannelTransform(weight.shape[axis], self.sizes.numel(), self.members, places, self.factors)
        return members.summed(weight, axis)


def _along(axis: int, dimensions: int) -> list[int]:
    """The shape of a vector that stands along an axis."""
    return [-1 if dimension == axis else 1 for dimension in range(dimensions)]
