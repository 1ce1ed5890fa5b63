"""The rows and columns of one weight as its writer wants them: sorted by what they are, on the weight's device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from canon.attacks.axes import Axis
from canon.attacks.channels import Kind
from canon.attacks.noise import Windows

DAMPING: Final = 0.25
"""How strongly dummies read dummies."""


def attention_by_kind(chain: bool) -> dict[Kind, float]:
    """How strongly dummies read columns of each kind, relative to live ones.

    A dummy is given the norm of a live channel, but its filter is random, so it is often louder. Dummies that read
    dummies as loudly would grow from layer to layer, until what cancels in exact arithmetic drowned the live channels
    in rounding errors.
    """
    loud = DAMPING if chain else 0.0
    return {Kind.LIVE: 1.0, Kind.ZERO_IN: float(chain), Kind.ZERO_OUT: loud, Kind.CLIQUE: loud}


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

    source: Tensor
    """The column before that each column takes."""

    factor: Tensor
    """How much of it, `[i', 1]`; nothing for dummies."""

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

    @staticmethod
    def of(columns: Axis, chain: bool, like: Tensor) -> Palette:
        """Sort them."""
        device, kind, attention = like.device, columns.kind, None
        counts = columns.counts
        silent = clique = following = kind[:0]
        if counts[Kind.ZERO_IN]:
            silent = torch.nonzero(kind == Kind.ZERO_IN).flatten()
        if counts[Kind.CLIQUE]:
            clique = torch.nonzero(kind == Kind.CLIQUE).flatten()
            following = ring(columns.filter[clique])
        by_kind = attention_by_kind(chain)
        if any(by_kind[which] != 1 and counts[which] for which in Kind):
            attention = like.new_tensor([by_kind[which] for which in Kind])[kind.to(device), None]
        return Palette(
            columns.source.to(device),
            (columns.share / columns.gain).to(like).view(-1, 1),
            attention,
            silent.to(device),
            clique.to(device),
            following.to(device),
            (math.sqrt(0.5) / columns.gain[clique]).to(like).view(-1, 1),
        )

    @property
    def dummies(self) -> int:
        """How many columns live rows may read although they hold nothing."""
        return self.silent.numel() + self.clique.numel()

    def fill(self, into: Tensor, noise: Windows, filters: Tensor) -> None:
        """Give live rows their weights on dummies: anything on null ones, sums of zero on cliques."""
        silent, size = self.silent.numel(), into.shape[2]
        drawn = noise.take(filters, self.dummies * size).view(-1, self.dummies, size)
        if silent:
            into.index_copy_(1, self.silent, drawn[:, :silent])
        if self.clique.numel():
            # Differences around a ring sum to zero, whatever the numbers are.
            free = drawn[:, silent:]
            into.index_copy_(1, self.clique, (free - free.index_select(1, self.following)).mul_(self.undo))
