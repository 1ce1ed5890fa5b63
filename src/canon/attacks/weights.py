"""Write an attacked weight: every entry once, from the plan.

With rows and columns sorted by what they are, a weight `W[o, i, k]` (k runs over the kernel) becomes

                live columns        zero-in     clique        zero-out
    live        W·share             anything    sums to 0     0
    zero-in     0                   anything*   0             0
    zero-out    anything            anything*   anything*     anything*
    clique      u, the same for all members of the clique

and in truth all rows and columns stand in the plan's order. *: only when dummies are chained, otherwise 0. What stands
on dummy columns is drawn anew for every row, also for copies of one channel, so that no two raw rows agree.
Camouflage multiplies rows by their gain and divides columns by theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from canon.attacks.axes import Axes, Axis
from canon.attacks.channels import Kind
from canon.attacks.noise import Noise, Windows
from canon.graph import LinearMap

DAMPING: Final = 0.25
"""How strongly dummies read dummies."""

CHUNK: Final = 2**18
"""Entries that are finished before the next are begun: as many as stay in a processor's cache."""


def write_weight(weight: Tensor, linear: LinearMap, axes: Axes, noise: Noise) -> Tensor:
    """The weight of one layer after the attack."""
    groups, kernel = linear.groups, weight.shape[2:]
    rows = axes.of(linear.rows)
    columns = Axis.plain(weight.shape[linear.column_axis]) if linear.columns is None else axes.of(linear.columns)
    flat = weight.movedim((linear.row_axis, linear.column_axis), (0, 1))
    flat = flat.reshape(*flat.shape[:2], kernel.numel())
    flat = flat.to(torch.promote_types(weight.dtype, torch.float32))
    result = flat.new_empty(rows.after, columns.after // groups, kernel.numel())
    length = result.shape[1] * result.shape[2]
    brush = Brush.of(flat, noise.windows(length, rows.filters, flat), columns, axes.plan.chain)
    sources, results = flat.tensor_split(groups), result.tensor_split(groups)
    for group in range(groups):
        brush.write(results[group], sources[group], rows.block(group, groups), columns.block(group, groups))
    result = result.to(weight.dtype).view(*result.shape[:2], *kernel)
    return result.movedim((0, 1), (linear.row_axis, linear.column_axis)).contiguous()


def write_bias(bias: Tensor, linear: LinearMap, axes: Axes) -> Tensor:
    """The bias of one layer: dummies take that of the channel they are modelled on, null ones zero."""
    rows = axes.of(linear.rows)
    gain = torch.where(rows.kind == Kind.ZERO_IN, 0.0, rows.gain).to(bias.device)
    picked = bias.index_select(0, rows.source.to(bias.device))
    return (picked.double() * gain).to(bias.dtype)


def column_attention(columns: Axis, chain: bool) -> Tensor:
    """How strongly dummies read each column, relative to live ones.

    A dummy is given the norm of a live channel, but its filter is random, so it is often louder. Dummies that read
    dummies as loudly would grow from layer to layer, until what cancels in exact arithmetic drowned the live channels
    in rounding errors.
    """
    dummies = columns.kind != Kind.LIVE
    loud = (columns.kind == Kind.CLIQUE) | (columns.kind == Kind.ZERO_OUT)
    attention = torch.where(loud, DAMPING, torch.ones(columns.after, dtype=torch.float64))
    return attention if chain else attention.masked_fill(dummies, 0.0)


@dataclass(frozen=True, eq=False)
class Brush:
    """What fills one weight."""

    own: Windows
    """Noise with the mean and deviation of the layer's own weights, for live rows and null ones."""

    free: Windows
    """Noise for whole filters of dummies."""

    hush: float
    """How strongly null rows read null columns. A null channel behind a norm is null but for a rounding error; unless
    it weakens on the way, a deep chain of them would carry that error into the live channels."""

    chain: bool
    """Whether dummies read dummies."""

    @staticmethod
    def of(weight: Tensor, windows: Windows, columns: Axis, chain: bool) -> Brush:
        """With the spread of a layer's weights; the more columns there are to read, the smaller a dummy's weights."""
        mean = float(weight.mean())
        square = float(torch.linalg.vector_norm(weight)) ** 2 / weight.numel()
        deviation = math.sqrt(max(0.0, square - mean**2))
        attention = column_attention(columns, chain)
        shrink = columns.before / float(attention.square().sum())
        free = windows.spread(mean * shrink, deviation * shrink**0.5)
        silent = int((columns.kind == Kind.ZERO_IN).sum())
        hush = DAMPING * min(1.0, math.sqrt(columns.before / max(1, silent)))
        return Brush(windows.spread(mean, deviation), free, hush, chain)

    def write(self, out: Tensor, weight: Tensor, rows: Axis, columns: Axis) -> None:
        """Fill `out[o', i', k]` from `weight[o, i, k]`."""
        device = out.device
        factor = (columns.share / columns.gain).to(out).view(1, -1, 1)
        base = weight.index_select(1, columns.source.to(device)).mul_(factor)
        dummies = DummyColumns.of(columns, out)
        attention = column_attention(columns, self.chain).to(out).view(1, -1, 1)
        lines = Lines(rows.source.to(device), rows.gain.to(out).view(-1, 1, 1), rows.filter.to(device))
        kinds = rows.kind.to(device)
        free_kinds, null_kinds = kinds >= Kind.ZERO_OUT, kinds == Kind.ZERO_IN
        some_free, some_null = bool(free_kinds.any()), bool(null_kinds.any())
        chunk = CHUNK if device.type == "cpu" else 64 * CHUNK
        step = max(1, chunk // max(1, out.shape[1] * out.shape[2]))
        for begin in range(0, out.shape[0], step):
            part = slice(begin, begin + step)
            into = out[part]
            torch.index_select(base, 0, lines.source[part], out=into)
            into.mul_(lines.gain[part])
            dummies.fill(into, self.own, lines.filter[part])
            if some_free:
                free = torch.nonzero(free_kinds[part]).flatten()
                into.index_copy_(0, free, self._free(free + begin, lines, attention, into))
            if some_null:
                null = torch.nonzero(null_kinds[part]).flatten()
                into.index_copy_(0, null, self._null(null + begin, lines, dummies, into))

    def _free(self, which: Tensor, lines: Lines, attention: Tensor, like: Tensor) -> Tensor:
        filters = self.free.take(lines.filter[which], like.shape[1] * like.shape[2])
        return filters.view(-1, *like.shape[1:]).mul_(lines.gain[which]).mul_(attention)

    def _null(self, which: Tensor, lines: Lines, dummies: DummyColumns, like: Tensor) -> Tensor:
        blank = like.new_zeros(which.numel(), *like.shape[1:])
        count = dummies.silent.numel()
        if self.chain and count:
            drawn = self.own.take(lines.filter[which], count * like.shape[2]).mul_(self.hush)
            blank.index_copy_(1, dummies.silent, drawn.view(-1, count, like.shape[2]))
        return blank


@dataclass(frozen=True, eq=False)
class Lines:
    """The rows of one block, on the weight's device."""

    source: Tensor
    gain: Tensor
    filter: Tensor


@dataclass(frozen=True, eq=False)
class DummyColumns:
    """The columns that live rows may read although they hold nothing."""

    silent: Tensor
    """Null columns."""

    clique: Tensor
    """Columns of cliques."""

    following: Tensor
    """For each of `clique`, which of them is next in its ring."""

    factor: Tensor
    """What undoes the gain of each of `clique`."""

    @staticmethod
    def of(columns: Axis, like: Tensor) -> DummyColumns:
        """Find them."""
        device = like.device
        clique = torch.nonzero(columns.kind == Kind.CLIQUE).flatten()
        place = torch.zeros(columns.after, dtype=torch.int64)
        place[clique] = torch.arange(clique.numel())
        return DummyColumns(
            torch.nonzero(columns.kind == Kind.ZERO_IN).flatten().to(device),
            clique.to(device),
            place[columns.following[clique]].to(device),
            (math.sqrt(0.5) / columns.gain[clique]).to(like).view(1, -1, 1),
        )

    def fill(self, into: Tensor, noise: Windows, filters: Tensor) -> None:
        """Give rows their weights on dummies: anything on null ones, sums of zero on cliques."""
        silent, cliques = self.silent.numel(), self.clique.numel()
        if not silent + cliques:
            return
        size = into.shape[2]
        drawn = noise.take(filters, (silent + cliques) * size).view(-1, silent + cliques, size)
        if silent:
            into.index_copy_(1, self.silent, drawn[:, :silent])
        if cliques:
            # Differences around a ring sum to zero, whatever the numbers are.
            free = drawn[:, silent:]
            into.index_copy_(1, self.clique, (free - free.index_select(1, self.following)).mul_(self.factor))
