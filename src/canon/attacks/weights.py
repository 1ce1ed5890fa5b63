"""Write an attacked weight: every entry once, from the plan.

With rows and columns sorted by what they are, a weight `W[o, i, k]` (k runs over the kernel) becomes

                live columns        zero-in     clique        odd group      zero-out
    live        W·share             anything    sums to 0     r·weight       0
    zero-in     0                   anything*   0             0              0
    zero-out    anything            anything*   anything*     anything*      anything*
    clique      u, the same for all members of the clique
    odd group   sums of filters u, with a sign
    dead        -|u| where inputs are never negative, 0 elsewhere

and in truth all rows and columns stand in the plan's order. *: only when dummies are chained, otherwise 0. What stands
on dummy columns is drawn anew for every row, also for copies of one channel, so that no two raw rows agree. Dead
columns are written as zero-in ones, tiny ones as anything times next to nothing. Live rows that only together give a
channel are so much of its row and so much of some `u`.
Camouflage multiplies rows by their gain and divides columns by theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from canon._memory import scratch, separate
from canon.attacks.axes import Axes, Axis
from canon.attacks.blend import Blend
from canon.attacks.channels import Kind
from canon.attacks.noise import FilterSource, Windows
from canon.attacks.palette import DAMPING, Lines, Palette, attention_by_kind
from canon.graph import LinearMap

CHUNK: Final = 2**19
"""Entries that are finished before the next are begun: as many as stay in a processor's cache."""


def write_weight(weight: Tensor, linear: LinearMap, axes: Axes, noise: FilterSource) -> Tensor:
    """The weight of one layer after the attack, its kernels grown where the plan says so."""
    groups, ring = linear.groups, int(linear.weight in axes.plan.kernels)
    rows = axes.of(linear.rows)
    columns = Axis.plain(weight.shape[linear.column_axis]) if linear.columns is None else axes.of(linear.columns)
    given = weight.movedim((linear.row_axis, linear.column_axis), (0, 1)).contiguous()
    given = given.to(torch.promote_types(weight.dtype, torch.float32))
    given = given if given.ndim > 2 else given[..., None]  # a matrix has kernels of one entry
    kernel = [side + 2 * ring for side in given.shape[2:]]
    result = separate((rows.after, columns.after // groups, *kernel), given)
    windows = noise.windows(result[0].numel(), rows.filters, given)
    brush = Brush(given, windows, columns, ring, axes.plan.chain)
    sources, results = given.tensor_split(groups), result.tensor_split(groups)
    blend, dead = axes.blend(linear.rows), bool(rows.counts[Kind.DEAD_RANGE])
    sheltered = axes.sheltered(linear) if dead and linear.columns else None
    for group in range(groups):
        there, those = rows.block(group, groups), columns.block(group, groups)
        palette = Palette.of(those, axes.plan.chain, given)
        brush.write(results[group], sources[group], there, palette)
        if blend is not None:
            brush.blend(results[group], blend.block(group, groups), there, palette)
        if dead:
            _press(results[group], there, None if sheltered is None else sheltered.tensor_split(groups)[group])
    if result.dtype != weight.dtype:
        # In a place of its own, like the wide one: between small things the heap would keep it.
        result = separate(result.shape, weight).copy_(result)
    result = result.view(*result.shape[:2], *kernel[: weight.ndim - 2])
    return result.movedim((0, 1), (linear.row_axis, linear.column_axis)).contiguous()


def write_bias(bias: Tensor, linear: LinearMap, axes: Axes) -> Tensor:
    """The bias of one layer: dummies take that of the channel they are modelled on, null ones zero, dead ones less."""
    rows = axes.of(linear.rows)
    gain = torch.where(rows.kind == Kind.ZERO_IN, 0.0, rows.gain).to(bias.device)
    picked = bias.index_select(0, rows.source.to(bias.device)).double() * gain
    blend = axes.blend(linear.rows)
    if blend is not None:
        picked *= blend.shift.to(bias.device)
    if rows.counts[Kind.DEAD_RANGE]:
        depth = axes.threshold(linear.rows).to(bias.device) - gain * bias.double().abs().mean()
        picked = torch.where((rows.kind == Kind.DEAD_RANGE).to(bias.device), depth - picked.abs(), picked)
    return picked.to(bias.dtype)


@dataclass(frozen=True, eq=False)
class Brush:
    """What fills one weight."""

    weight: Tensor
    """The weight before, `[o, i, k…]`."""

    windows: Windows
    """Standard normal noise."""

    columns: Axis
    """What its columns become."""

    ring: int
    """How many entries kernels grow on every side."""

    chain: bool
    """Whether dummies read dummies."""

    @cached_property
    def spread(self) -> tuple[float, float]:
        """Mean and deviation of the layer's own weights, with the zeros around them where kernels grow."""
        count = self.weight.shape[:2].numel() * math.prod(side + 2 * self.ring for side in self.weight.shape[2:])
        mean = float(self.weight.sum()) / count
        square = float(torch.linalg.vector_norm(self.weight)) ** 2 / count
        return mean, math.sqrt(max(0.0, square - mean**2))

    @cached_property
    def own(self) -> Windows:
        """Noise like the layer's own weights, for live rows and null ones."""
        return self.windows.spread(*self.spread)

    @cached_property
    def free(self) -> Windows:
        """Noise for whole filters of dummies: the more columns there are to read, the smaller."""
        attention, counts = attention_by_kind(self.chain), self.columns.counts
        shrink = self.columns.before / sum(attention[kind] ** 2 * counts[kind] for kind in Kind)
        mean, deviation = self.spread
        return self.windows.spread(mean * shrink, deviation * shrink**0.5)

    @cached_property
    def damping(self) -> float:
        """How strongly null rows read null columns.

        A null channel behind a norm is null but for a rounding error; unless it weakens on the way, a deep chain of
        them would carry that error into the live channels.
        """
        return DAMPING * min(1.0, math.sqrt(self.columns.before / max(1, self.columns.counts[Kind.ZERO_IN])))

    def write(self, out: Tensor, weight: Tensor, rows: Axis, palette: Palette) -> None:
        """Fill `out[o', i', k'…]` from `weight[o, i, k…]`: rows of one sort together, then all to their places."""
        chunk = CHUNK if out.device.type == "cpu" else 64 * CHUNK
        step = max(1, min(out.shape[0], chunk // max(1, out[0].numel())))
        lines, back, counts = Lines.of(rows, step, out)
        canvas, begin = scratch((step, *out.shape[1:]), out.dtype, out.device), 0
        for live, null, *free in counts:
            other = live + null
            count = other + sum(free)
            if live:
                self._live(canvas[:live], weight, lines.part(begin, begin + live), palette)
            if null:
                self._null(canvas[live:other], lines.part(begin + live, begin + other), palette)
            if other < count:
                self._free(canvas[other:count], lines.part(begin + other, begin + count), palette)
            end = begin + count
            torch.index_select(canvas[:count], 0, back[begin:end], out=out[begin:end])
            begin = end

    def blend(self, out: Tensor, blend: Blend, rows: Axis, palette: Palette) -> None:
        """Make rows that are not plain: so much of what stands there, and so much of some filters."""
        mixed = torch.zeros(rows.after, dtype=torch.bool).index_fill_(0, blend.noise[0], True) | (blend.own != 1)
        places = torch.nonzero(mixed).flatten()
        order = torch.zeros(rows.after, dtype=torch.int64)
        order[places] = torch.arange(places.numel())
        filters, column = torch.unique(blend.noise[1], return_inverse=True)
        entries = torch.stack([order[blend.noise[0]], column]).to(out.device)
        shape = (places.numel(), filters.numel())
        amount = torch.sparse_coo_tensor(entries, blend.amount.to(out), shape, check_invariants=False).coalesce()
        base = self.free.take(filters.to(out.device), out[0].numel())
        if palette.attention is not None:
            base.view(len(base), -1, out[0, 0].numel()).mul_(palette.attention)
        noise = torch.sparse.mm(amount, base).mul_(rows.gain[places].to(out).view(-1, 1))
        places, own = places.to(out.device), blend.own[places].to(out)
        flat = out.flatten(1)
        flat[places] = flat[places] * own.view(-1, 1) + noise

    def _live(self, out: Tensor, weight: Tensor, lines: Lines, palette: Palette) -> None:
        picked = weight.index_select(0, lines.source).flatten(2).mul_(lines.gain[:, None])
        if self.ring:
            made = palette.columns.apply(picked, 1)
            _put_inside(out.zero_(), made.view(*made.shape[:2], *weight.shape[2:]))
        else:
            palette.columns.apply(picked, 1, out.flatten(2))
        if palette.dummies:
            palette.fill(out.flatten(2), self.own, lines.filter)

    def _free(self, out: Tensor, lines: Lines, palette: Palette) -> None:
        flat = out.flatten(1)
        self.free.take(lines.filter, flat.shape[1], out=flat).mul_(lines.gain)
        if palette.attention is not None:
            out.flatten(2).mul_(palette.attention)

    def _null(self, out: Tensor, lines: Lines, palette: Palette) -> None:
        flat, count = out.zero_().flatten(2), palette.silent.numel()
        if self.chain and count:
            drawn = self.own.take(lines.filter, count * flat.shape[2]).mul_(self.damping)
            flat.index_copy_(1, palette.silent, drawn.view(-1, count, flat.shape[2]))


def _press(out: Tensor, rows: Axis, sheltered: Tensor | None) -> None:
    """Let dead rows read what is never negative with weights that are never positive, and nothing else."""
    dead = torch.nonzero(rows.kind == Kind.DEAD_RANGE).flatten().to(out.device)
    if sheltered is None:
        out[dead] = 0
        return
    reading = sheltered.to(out).view(1, -1, *[1] * (out.ndim - 2))
    out[dead] = -out[dead].abs() * reading


def _put_inside(out: Tensor, given: Tensor) -> None:
    """Put kernels into the middle of kernels that are larger by one entry on every side."""
    for axis in range(2, out.ndim):
        out = out.narrow(axis, 1, out.shape[axis] - 2)
    out.copy_(given)
