"""ChannelTransform: `y_before = M · y_after`, sparse, the one object that attack, recovery and alignment share.

A consumer follows with `W ← W·M` on its input axis. Transforms compose (`@`), stand side by side over a concatenation
(`block_sum`), and are lifted over a flatten (`lift`). A dense matrix is made only on request, for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from canon.errors import TransformError


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
        return ChannelTransform(before, after, rows[order], columns[order], values[order].double())

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
        return ChannelTransform.of(target.numel(), after, rows, target[rows], factor.double()[rows])

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
        inner = torch.arange(repeat)
        return ChannelTransform.of(
            self.before * repeat,
            self.after * repeat,
            (self.rows[:, None] * repeat + inner).flatten(),
            (self.columns[:, None] * repeat + inner).flatten(),
            self.values.repeat_interleave(repeat),
        )

    def inverse(self) -> ChannelTransform:
        """The transform that undoes a bijective one (permutation and scaling, composed)."""
        if self.before != self.after or self.rows.unique().numel() != self.before:
            raise TransformError("only permutations and scalings have an inverse")
        return ChannelTransform.of(self.after, self.before, self.columns, self.rows, 1 / self.values)

    # -- use ---------------------------------------------------------------------------------------------------------

    def dense(self) -> Tensor:
        """M as a matrix: the oracle of the tests."""
        matrix = torch.zeros(self.before, self.after, dtype=torch.float64)
        return matrix.index_put_((self.rows, self.columns), self.values, accumulate=True)

    def apply(self, weight: Tensor, axis: int) -> Tensor:
        """`W·M` along an axis: gather, scale and add over slices, linear in what is read."""
        if weight.shape[axis] != self.before:
            raise TransformError(
                f"the transform reads {self.before} channels, axis {axis} of the weight has {weight.shape[axis]}"
            )
        if self._is_identity:
            return weight
        shape = [1] * weight.ndim
        shape[axis] = -1
        device = weight.device
        if not self.is_gather:
            return self._summed(weight, axis)
        picked = weight.index_select(axis, self.rows.to(device))
        if self.is_unit:
            return picked
        return (picked * self.values.to(device, _wide(weight.dtype)).view(shape)).to(weight.dtype)

    def _summed(self, weight: Tensor, axis: int) -> Tensor:
        """Columns with one entry are gathered, and only those with several added up, in float64."""
        count = torch.bincount(self.columns, minlength=self.after)
        several = count[self.columns] > 1
        first = torch.zeros(self.after, dtype=torch.int64)
        first[self.columns] = torch.arange(self.columns.numel())
        if not self.rows.numel():
            return weight.new_zeros([*weight.shape[:axis], self.after, *weight.shape[axis + 1 :]])
        factor, rows = self.values[first], self.rows[first]
        shape = [1] * weight.ndim
        shape[axis] = -1
        device, wide = weight.device, _wide(weight.dtype)
        result = weight.index_select(axis, rows.to(device)).to(wide)
        result.mul_(factor.to(device, wide).view(shape))
        result.index_fill_(axis, torch.nonzero(count == 0).flatten().to(device), 0.0)
        if int(several.sum()) > 8 * self.after:
            return self._mixed(weight, axis)
        if bool(several.any()):
            target = torch.nonzero(count > 1).flatten()
            place = torch.zeros_like(count)
            place[target] = torch.arange(target.numel())
            picked = weight.index_select(axis, self.rows[several].to(device)).double()
            picked.mul_(self.values[several].to(device).view(shape))
            size = list(weight.shape)
            size[axis] = target.numel()
            total = torch.zeros(size, dtype=torch.float64, device=device)
            total.index_add_(axis, place[self.columns[several]].to(device), picked)
            result.index_copy_(axis, target.to(device), total.to(wide))
        return result.to(weight.dtype)

    def _mixed(self, weight: Tensor, axis: int) -> Tensor:
        """Where most columns are sums of many, as a matrix product, in float64."""
        moved = weight.movedim(axis, -1)
        return (moved.double() @ self.dense().to(weight.device)).to(weight.dtype).movedim(-1, axis).contiguous()

    @cached_property
    def is_gather(self) -> bool:
        """Exactly one entry in every column."""
        return self.columns.numel() == self.after and bool((self.columns == torch.arange(self.after)).all())

    @cached_property
    def is_unit(self) -> bool:
        """All entries are 1."""
        return bool((self.values == 1).all())

    @cached_property
    def _is_identity(self) -> bool:
        return self.before == self.after and self.is_gather and self.is_unit and bool((self.rows == self.columns).all())


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype to multiply in: half precision loses too much."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32
