"""The rows and columns of one weight as its writer wants them: sorted by what they are, on the weight's device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from canon.attacks.axes import Axis
from canon.attacks.channels import CLIQUES, SILENT, Kind, among
from canon.attacks.noise import Windows
from canon.transforms import ChannelTransform

DAMPING: Final = 0.25
"""How strongly dummies read dummies."""


def attention_by_kind(chain: bool) -> dict[Kind, float]:
    """How strongly dummies read columns of each kind, relative to live ones.

    A dummy is given the norm of a live channel, but its filter is random, so it is often louder. Dummies that read
    dummies as loudly would grow from layer to layer, until what cancels in exact arithmetic drowned the live channels
    in rounding errors.
    """
    loud = DAMPING if chain else 0.0
    return {kind: 1.0 if kind == Kind.LIVE else float(chain) if kind in SILENT else loud for kind in Kind}


def ring(names: Tensor) -> Tensor:
    """For each entry the next one of the same name; the last is followed by the first.

    >>> ring(torch.tensor([5, 7, 5, 5, 7])).tolist()
    [2, 4, 3, 0, 1]
    """
    order = torch.argsort(names, stable=True)
    counts = torch.unique_consecutive(names[order], return_counts=True)[1]
    ends = counts.cumsum(0)
    after = torch.arange(1, names.numel() + 1)
    after[ends - 1] = ends - counts
    following = torch.empty_like(order)
    following[order] = order[after]
    return following


@dataclass(frozen=True, eq=False)
class Lines:
    """The rows of one block: in steps, and in every step first the live, then the null, then the free."""

    source: Tensor
    """The row before that each row copies."""

    gain: Tensor
    """Camouflage scale, `[o', 1]`."""

    filter: Tensor
    """The number of its filter."""

    @staticmethod
    def of(rows: Axis, step: int, like: Tensor) -> tuple[Lines, Tensor, list[list[int]]]:
        """The rows, where each of the weight's own order stands within its step, and each step's rows by kind."""
        index, kinds = torch.arange(rows.after), len(Kind)
        sort = (index // step) * kinds + rows.kind if step < rows.after else rows.kind
        order = torch.argsort(sort, stable=True)
        back = torch.empty_like(order)
        back[order] = index % step
        places = rows.places[:2, order].to(like.device)
        steps = -(-rows.after // step)
        return (
            Lines(places[0], rows.gain[order].to(like).view(-1, 1), places[1]),
            back.to(like.device),
            torch.bincount(sort, minlength=kinds * steps).view(steps, kinds).tolist(),
        )

    def part(self, begin: int, end: int) -> Lines:
        """Some of them."""
        part = slice(begin, end)
        return Lines(self.source[part], self.gain[part], self.filter[part])


@dataclass(frozen=True, eq=False)
class Palette:
    """The columns of one block."""

    columns: ChannelTransform
    """M: the column before that each column takes, and how much of it; nothing for dummies."""

    attention: Tensor | None
    """How strongly free rows read each, `[i', 1]`; None: all alike."""

    silent: Tensor
    """Null columns."""

    clique: Tensor
    """Columns of cliques."""

    following: Tensor
    """For each of `clique`, which of them is next in its ring."""

    undo: Tensor
    """What undoes the gain of each of `clique`, `[cliques, 1]`."""

    noisy: Tensor | None
    """What is added to each of `clique` for its own sake, `[cliques, 1]`; None: nothing anywhere."""

    tiny: Tensor
    """Columns that are read weakly."""

    bound: Tensor
    """Columns of odd groups."""

    group: Tensor
    """For each of `bound`, the number of its group."""

    groups: int
    """How many there are."""

    weight: Tensor
    """How strongly each of `tiny`, then each of `bound` is read, `[…, 1]`."""

    @staticmethod
    def of(columns: Axis, chain: bool, like: Tensor) -> Palette:
        """Sort them."""
        device, kind, attention = like.device, columns.kind, None
        counts, live = columns.counts, kind == Kind.LIVE
        silent = clique = following = tiny = bound = group = kind[:0]
        factor, noisy, groups = columns.share / columns.gain, None, 0
        if any(counts[which] for which in SILENT):
            silent = torch.nonzero(among(kind, SILENT)).flatten()
        if any(counts[which] for which in CLIQUES):
            clique = torch.nonzero(among(kind, CLIQUES)).flatten()
            following = ring(columns.filter[clique])
        if counts[Kind.NOISY_CLIQUE]:
            noisy = factor[clique].to(like).view(-1, 1)
        if counts[Kind.TINY]:
            tiny = torch.nonzero(kind == Kind.TINY).flatten()
        if counts[Kind.ODD]:
            bound = torch.nonzero(kind == Kind.ODD).flatten()
            names, group = torch.unique(columns.filter[bound], return_inverse=True)
            groups = names.numel()
        by_kind = attention_by_kind(chain)
        if any(by_kind[which] != 1 and counts[which] for which in Kind):
            attention = like.new_tensor([by_kind[which] for which in Kind])[kind.to(device), None]
        return Palette(
            ChannelTransform.expansion(columns.source, torch.where(live, factor, 0.0), columns.before).to(device),
            attention,
            silent.to(device),
            clique.to(device),
            following.to(device),
            (math.sqrt(0.5) / columns.gain[clique]).to(like).view(-1, 1),
            noisy,
            tiny.to(device),
            bound.to(device),
            group.to(device),
            groups,
            factor[torch.cat([tiny, bound])].to(like).view(-1, 1),
        )

    @property
    def dummies(self) -> int:
        """How many numbers a live row draws for its columns of dummies."""
        return self.silent.numel() + self.clique.numel() + self.tiny.numel() + self.groups

    def fill(self, into: Tensor, noise: Windows, filters: Tensor) -> None:
        """Give live rows their weights on dummies: anything on null ones, what cancels on cliques and groups."""
        silent, size = self.silent.numel(), into.shape[2]
        weak = silent + self.clique.numel()
        strong = weak + self.tiny.numel()
        drawn = noise.take(filters, self.dummies * size).view(-1, self.dummies, size)
        if silent:
            into.index_copy_(1, self.silent, drawn[:, :silent])
        if self.clique.numel():
            # Differences around a ring sum to zero, whatever the numbers are.
            free = drawn[:, silent:weak]
            weights = (free - free.index_select(1, self.following)).mul_(self.undo)
            into.index_copy_(1, self.clique, weights if self.noisy is None else weights + free * self.noisy)
        if weak < strong:
            into.index_copy_(1, self.tiny, drawn[:, weak:strong] * self.weight[: strong - weak])
        if self.groups:
            shared = drawn[:, strong:].index_select(1, self.group)
            into.index_copy_(1, self.bound, shared.mul_(self.weight[strong - weak :]))
