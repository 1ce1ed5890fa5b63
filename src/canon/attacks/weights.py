"""Write an attacked weight: every entry once, from the plan.

With rows and columns sorted by what they are, a weight `W[o, i, k]` (k runs over the kernel) becomes

                live columns        zero-in     clique        zero-out
    live        W·share             anything    sums to 0     0
    zero-in     0                   anything*   0             0
    zero-out    anything            anything    anything      anything
    clique      u, the same for all members of the clique

and in truth all rows and columns stand in the plan's order. *: only when dummies are chained. What stands on dummy
columns is drawn anew for every row, also for copies of one channel, so that no two raw rows agree.
Camouflage multiplies rows by their gain and divides columns by theirs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from canon.attacks.channels import Kind
from canon.attacks.noise import Noise
from canon.attacks.plan import AttackPlan
from canon.graph import LinearMap, Segment


@dataclass(frozen=True, eq=False)
class Axis:
    """The rows or the columns of one weight after the attack."""

    before: int
    """Entries before."""

    source: Tensor
    """The entry before that each entry copies, or models itself on."""

    kind: Tensor
    share: Tensor
    gain: Tensor
    filter: Tensor
    filters: int
    following: Tensor

    @property
    def after(self) -> int:
        """Entries after."""
        return self.source.numel()

    def block(self, index: int, count: int) -> Axis:
        """One of `count` equal blocks, in coordinates of its own."""
        size, old = self.after // count, self.before // count
        part = slice(index * size, (index + 1) * size)
        return Axis(
            before=old,
            source=self.source[part] - index * old,
            kind=self.kind[part],
            share=self.share[part],
            gain=self.gain[part],
            filter=self.filter[part],
            filters=self.filters,
            following=self.following[part] - index * size,
        )

    @staticmethod
    def plain(length: int) -> Axis:
        """An axis that stays."""
        index = torch.arange(length)
        ones = torch.ones(length, dtype=torch.float64)
        return Axis(length, index, torch.zeros_like(index), ones, ones, index, length, index)


def axis_of(plan: AttackPlan, segments: tuple[Segment, ...]) -> Axis:
    """An axis as the plan leaves it: segments side by side, each channel repeated."""
    parts: list[Axis] = []
    before = after = filters = 0
    for segment in segments:
        part = _segment_axis(plan, segment)
        parts.append(
            Axis(
                before=part.before,
                source=part.source + before,
                kind=part.kind,
                share=part.share,
                gain=part.gain,
                filter=part.filter + filters,
                filters=part.filters,
                following=part.following + after,
            )
        )
        before, after, filters = before + part.before, after + part.after, filters + part.filters
    return Axis(
        before=before,
        source=torch.cat([p.source for p in parts]),
        kind=torch.cat([p.kind for p in parts]),
        share=torch.cat([p.share for p in parts]),
        gain=torch.cat([p.gain for p in parts]),
        filter=torch.cat([p.filter for p in parts]),
        filters=filters,
        following=torch.cat([p.following for p in parts]),
    )


def _segment_axis(plan: AttackPlan, segment: Segment) -> Axis:
    planned = plan.spaces.get(segment.space)
    if planned is None:
        return Axis.plain(segment.length)
    repeat = segment.repeat
    inner = torch.arange(repeat)

    def lift(index: Tensor) -> Tensor:
        return (index[:, None] * repeat + inner).flatten()

    gain = planned.gains.get(segment.tap)
    ones = torch.ones(planned.after, dtype=torch.float64)
    return Axis(
        before=segment.length,
        source=lift(planned.model),
        kind=planned.kind.repeat_interleave(repeat),
        share=planned.share.repeat_interleave(repeat),
        gain=(ones if gain is None else gain).repeat_interleave(repeat),
        filter=lift(planned.filter),
        filters=planned.filters * repeat,
        following=lift(planned.following),
    )


def write_weight(weight: Tensor, linear: LinearMap, plan: AttackPlan, noise: Noise) -> Tensor:
    """The weight of one layer after the attack."""
    rows = axis_of(plan, linear.rows)
    width = weight.shape[linear.column_axis] * linear.groups
    columns = Axis.plain(width) if linear.columns is None else axis_of(plan, linear.columns)
    kernel = weight.shape[2:]
    flat = weight.detach().movedim((linear.row_axis, linear.column_axis), (0, 1))
    flat = flat.reshape(*flat.shape[:2], kernel.numel())
    wide = flat.to(torch.promote_types(weight.dtype, torch.float32))
    result = wide.new_empty(rows.after, columns.after // linear.groups, flat.shape[2])
    for group in range(linear.groups):
        into = result.tensor_split(linear.groups)[group] if linear.groups > 1 else result
        source = wide.tensor_split(linear.groups)[group] if linear.groups > 1 else wide
        write_block(
            into, source, rows.block(group, linear.groups), columns.block(group, linear.groups), noise, plan.chain
        )
    result = result.to(weight.dtype).view(*result.shape[:2], *kernel)
    return result.movedim((0, 1), (linear.row_axis, linear.column_axis)).contiguous()


def write_block(out: Tensor, weight: Tensor, rows: Axis, columns: Axis, noise: Noise, chain: bool) -> None:
    """Fill `out[o', i', k]` from `weight[o, i, k]`."""
    size, device = out.shape[2], out.device
    mean, deviation = _spread(weight)
    windows = noise.windows(columns.after * size, rows.filters, out)
    live = _where(rows.kind == Kind.LIVE, device)
    free = _where((rows.kind == Kind.ZERO_OUT) | (rows.kind == Kind.CLIQUE), device)
    null = _where(rows.kind == Kind.ZERO_IN, device)
    silent = _where(columns.kind == Kind.ZERO_IN, device)

    factor = (columns.share / columns.gain).to(out).view(1, -1, 1)
    base = weight.index_select(1, columns.source.to(device)).mul_(factor)
    block = base.index_select(0, rows.source.to(device)[live]).mul_(rows.gain.to(out)[live].view(-1, 1, 1))
    _fill_dummy_columns(block, columns, windows.take(rows.filter.to(device)[live], columns.after * size, mean, deviation))
    out.index_copy_(0, live, block)

    # The more columns there are to read, the smaller the weights: a dummy must not outgrow the live channels.
    shrink = columns.before / columns.after
    filters = windows.take(
        rows.filter.to(device)[free], columns.after * size, mean * shrink, deviation * math.sqrt(shrink)
    )
    filters = filters.view(-1, columns.after, size).mul_(rows.gain.to(out)[free].view(-1, 1, 1))
    if not chain:
        filters.mul_((columns.kind == Kind.LIVE).to(out).view(1, -1, 1))
    out.index_copy_(0, free, filters)

    blank = out.new_zeros(null.numel(), columns.after, size)
    if chain and silent.numel() and null.numel():
        drawn = windows.take(rows.filter.to(device)[null], silent.numel() * size, mean, deviation)
        blank.index_copy_(1, silent, drawn.view(-1, silent.numel(), size))
    out.index_copy_(0, null, blank)


def _fill_dummy_columns(block: Tensor, columns: Axis, drawn: Tensor) -> None:
    """Give live rows their weights on dummies: anything on null ones, sums of zero on cliques."""
    device = block.device
    drawn = drawn.view(block.shape)
    silent = _where(columns.kind == Kind.ZERO_IN, device)
    if silent.numel():
        block.index_copy_(1, silent, drawn.index_select(1, silent))
    clique = _where(columns.kind == Kind.CLIQUE, device)
    if clique.numel():
        # Differences around a ring sum to zero, whatever the numbers are.
        ring = drawn.index_select(1, clique) - drawn.index_select(1, columns.following.to(device)[clique])
        ring.mul_((math.sqrt(0.5) / columns.gain).to(block)[clique].view(1, -1, 1))
        block.index_copy_(1, clique, ring)


def write_bias(bias: Tensor, linear: LinearMap, plan: AttackPlan) -> Tensor:
    """The bias of one layer: dummies take that of the channel they are modelled on, null ones zero."""
    rows = axis_of(plan, linear.rows)
    gain = torch.where(rows.kind == Kind.ZERO_IN, 0.0, rows.gain).to(bias.device)
    picked = bias.detach().index_select(0, rows.source.to(bias.device))
    return (picked.double() * gain).to(bias.dtype)


def _where(mask: Tensor, device: torch.device) -> Tensor:
    return torch.nonzero(mask).flatten().to(device)


def _spread(weight: Tensor) -> tuple[float, float]:
    """Mean and deviation of a layer's own weights."""
    deviation, mean = torch.std_mean(weight, correction=0)
    return float(mean), float(deviation)
