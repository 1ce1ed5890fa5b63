"""Channels `f(u)` and `f(−u)`: groups of them give less than they seem to, although no two are proportional.

For ReLU, GELU, SiLU, Hardswish and others, `f(u) = even(u) + κ/2·u`. With `w` for columns, channels along one
direction `u` add up to an even part `e = Σ w` and a line `d = Σ ±w`. One channel `f(o·u)`, with the sign `o` of our
choice, has the even part `e` and the line `o·e`. So one channel per direction is enough, and none where `e = 0`, if
there are signs for which all lines together stay what they are: `Σ o·e⊗u = Σ d⊗u`. These equations are linear in
`o`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import torch

from canon.describe import Array, Signature, Stack, cluster
from canon.describe.arrays import norm
from canon.describe.curves import Curve
from canon.graph import Space, Stage
from canon.recovery.facts import Facts, Subject
from canon.recovery.facts.alive import Alive, settled
from canon.recovery.facts.forms import Forms
from canon.recovery.proposal import Proposal, SpaceChange, drop, move_columns, negate, space_by_space, unread
from canon.rewrite.axes import by_row
from canon.transforms import ChannelTransform

GLANCE: Final = (12, 4)
"""Inputs, and numbers of their kernels, by which directions are compared first."""


@dataclass(frozen=True, eq=False)
class Bent:
    """An activation of a space, and how some readers see it. Every reader of a dense block has one of its own."""

    stage: Stage
    factors: dict[int, Array]
    """By consumer's point: what multiplies the activation."""

    vectors: Array
    """What the function is applied to, as numbers, `width x numbers`."""

    curve: Curve
    beside: bool
    """Whether lines are added to the activation, as in a stream; they stand in `vectors` too."""

    gate: Array | None = None
    """The line that multiplies the activation, as vectors of length 1 whose sign and size stand in `factors`."""

    @cached_property
    def size(self) -> Array:
        """Channel = size x f(unit)."""
        return norm(self.vectors) if self.curve.homogeneous else np.ones(len(self.vectors))

    @cached_property
    def unit(self) -> Array:
        """Vectors of length 1, or 0."""
        size = norm(self.vectors)
        return np.asarray(self.vectors / np.where(size > 0, size, 1.0)[:, None])


@dataclass(frozen=True, eq=False)
class Directions:
    """Channels by the directions of their filters."""

    leader: Array
    sign: Array
    """Channels of one leader are `size x f(sign x direction)` before every reader."""


@dataclass(frozen=True, eq=False)
class MirroredSpace:
    """A space that holds mirrored channels."""

    space: Space
    bends: list[Bent]
    directions: Directions
    paired: Array
    """Channels along whose direction both signs occur, or several that only this pass sees to be one."""


@dataclass(frozen=True, eq=False)
class Merge:
    """What becomes of a space's channels."""

    into: Array
    """By channel: the one that stands for its direction."""

    flat: Array
    """Channels of directions that nothing is left of."""

    gone: Array
    turned: Array
    """Channels, by number, whose sign must be turned."""

    noise: float
    """What was left of directions that nothing is left of, relative to what was added up."""


def mirrored(subject: Subject, facts: Facts) -> Proposal | None:
    """One channel for each direction, with the sign that keeps the function."""
    places = _places(subject, facts)
    if not places:
        return None
    # Assume that all mirrored channels are gone, and see whether the living readers do without them.
    gone = {index: place.paired for index, place in places.items()}
    while True:
        alive = Alive(subject, gone)
        merges = {index: _merge(subject, places[index], alive) for index in gone}
        found = {index: merge.gone for index, merge in merges.items() if merge is not None}
        if settled(gone, found):
            break
        gone = found

    def one_each(now: Subject, space: Space) -> SpaceChange | None:
        merge = merges[space.id]
        return None if merge is None else _written(now, places[space.id], merge)

    return space_by_space(subject, [places[index].space for index in sorted(gone)], one_each)


def _places(subject: Subject, facts: Facts) -> dict[int, MirroredSpace]:
    """Where there are mirrored channels, by space id: channels may be mirrored but for what they read of others."""
    spaces, shown = subject.narrowing, subject
    known, found = dict[int, Array](), dict[int, MirroredSpace]()
    for _ in subject.graph.spaces:
        seen = (_place(shown, facts, s) for s in spaces if s.id in known or glance(shown, s))
        found = {place.space.id: place for place in seen if place is not None}
        paired = {index: place.paired for index, place in found.items()}
        if settled(known, paired):
            break
        known, shown = paired, subject
        for index, place in found.items():
            channels = torch.from_numpy(np.flatnonzero(paired[index]))
            shown = shown.with_tensors(unread(shown, place.space, channels))
    return found


def glance(subject: Subject, space: Space) -> bool:
    """Whether some numbers of the rows suggest that two channels have one direction."""
    for producer in space.producers:
        linear = subject.graph.maps[producer.map]
        rows = by_row(subject.tensors[linear.weight], linear)[producer.offset : producer.offset + space.width]
        seen = rows[:, : GLANCE[0], : GLANCE[1]].flatten(1).double().cpu().numpy()
        unit = seen / np.maximum(norm(seen), 1e-300)[:, None]
        leader = _grouped(space, [unit], [], subject.tolerance.equal).leader
        if (leader != np.arange(leader.size)).any():
            return True
    return False


def bends(subject: Subject, facts: Facts, space: Space, wanted: Callable[[Curve], bool]) -> list[Bent]:
    """How readers see a space, if each sees one function of a line, and all functions are as wanted; else empty."""
    names = [name for s in space.stages for name in s.params.values()]
    names += [subject.graph.maps[p.map].weight for p in space.producers]
    if len(names) != len(set(names)):
        return []
    forms, seen = Forms(subject, space, facts.parameters, None), dict[int, Bent]()
    for consumer in space.consumers:
        form = forms.at.get(consumer.point)
        if form is None or form.bend is None or not wanted(facts.curves.of(form.bend.stage.function)):
            return []
        stage, beside, gate = form.bend.stage, bool(form.lines), None
        if (form.offset.any() and not beside) or (beside and (not form.bend.factor.all() or _shifted(space, forms))):
            return []
        factor = form.bend.factor
        if form.bend.gate is not None:
            lines = forms.vectors(form.bend.gate)
            size = norm(lines) * _side(lines)
            if not size.all():
                return []
            gate, factor = lines / size[:, None], factor * size
        key = consumer.point if beside or gate is not None else stage.output
        if key not in seen:
            curve, vectors = facts.curves.of(stage.function), forms.vectors(forms.at[stage.inputs[0]])
            if beside:
                curve, added = replace(curve, odd=True), replace(form, bend=None).scaled(1 / form.bend.factor)
                vectors = np.concatenate([vectors, forms.vectors(added)], axis=1)
            seen[key] = Bent(stage, {}, vectors, curve, beside, gate)
        seen[key].factors[consumer.point] = factor
    return list(seen.values())


def _shifted(space: Space, forms: Forms) -> bool:
    """Whether something is added to what an activation gave: that has no sign to turn."""
    given = [forms.at.get(s.inputs[0]) for s in space.stages if s.params.keys() & {"bias", "mean"}]
    return any(form is not None and form.bend is not None for form in given)


def directions(space: Space, bent: Sequence[Bent], tolerance: float) -> Directions:
    """Channels whose vectors agree up to one sign before every reader, and in their sizes where these matter."""
    sizes = [norm(one.vectors) for one in bent if not one.curve.homogeneous]
    gates = [one.gate for one in bent if one.gate is not None]
    return _grouped(space, [one.unit for one in bent], sizes, tolerance, gates)


def _side(vectors: Array) -> Array:
    """The sign of a projection that no vector is likely to be at right angles to."""
    probe = np.random.default_rng(0).standard_normal(vectors.shape[1])
    return np.where(vectors @ probe < 0, -1.0, 1.0)


def _grouped(
    space: Space, units: Sequence[Array], sizes: Sequence[Array], tolerance: float, gates: Sequence[Array] = ()
) -> Directions:
    sign = _side(np.concatenate(units, axis=1))
    stacks = [Stack(unit[None], None, True) for unit in (*(u * sign[:, None] for u in units), *gates)]
    stacks += [Stack(np.log(np.where(size > 0, size, 1.0))[None, :, None], None, True) for size in sizes]
    block = np.arange(sign.size) // (sign.size // space.groups)
    return Directions(cluster(Signature(sign.size, stacks), block, tolerance), sign)


def _place(subject: Subject, facts: Facts, space: Space) -> MirroredSpace | None:
    bent = bends(subject, facts, space, lambda curve: curve.half)
    if not bent:
        return None
    found = directions(space, bent, subject.tolerance.equal)
    merged = found.sign != found.sign[found.leader]
    if any(one.gate is not None and one.curve.homogeneous for one in bent):
        # A scale that a gate takes from the one factor and gives to the other is no scale of a tap.
        merged |= found.leader != np.arange(space.width)
    if not merged.any():
        return None
    paired = np.zeros(space.width, dtype=bool)
    paired[found.leader[merged]] = True
    return MirroredSpace(space, bent, found, paired[found.leader])


def _merge(subject: Subject, place: MirroredSpace, alive: Alive) -> Merge | None:
    """What becomes of the channels, as far as living readers see them; None: there are no signs that fit."""
    found, zero = place.directions, subject.tolerance.zero
    heads, group = np.unique(found.leader, return_inverse=True)
    sums = [
        _Sums.of(_columns(subject, place.space, bent, alive), found.sign, group, bent, heads) for bent in place.bends
    ]
    flat = np.logical_and.reduce([place.paired[heads], *(norm(s.even) <= zero * norm(s.mass) for s in sums)])
    noise = max(norm(s.even[flat]).sum() / max(norm(s.mass[flat]).sum(), 1e-300) for s in sums)
    signs = found.sign[heads]
    if any(bent.curve.odd for bent in place.bends):
        odd = [s for s, bent in zip(sums, place.bends, strict=True) if bent.curve.odd]
        solved = _signs(odd, flat, zero)
        if solved is None:  # without the others, those of which nothing is left may go all the same
            gone, everyone = flat[group], np.arange(found.sign.size)
            alone = flat.any() and _signs([s.taking(flat) for s in odd], flat[flat], zero) is not None
            return Merge(everyone, gone, gone, everyone[:0], noise) if alone else None
        signs = np.where(sum(norm(s.mass) for s in sums) > 0, solved, signs)
    right = found.sign == signs[group]
    order = np.lexsort((np.arange(found.sign.size), ~right, group))
    chosen = order[np.searchsorted(group[order], np.arange(heads.size))]
    into = chosen[group]
    gone = (into != np.arange(found.sign.size)) | flat[group]
    if not gone.any() or gone.all():
        return None
    return Merge(into, flat[group], gone, chosen[~right[chosen] & ~flat], noise)


@dataclass(frozen=True, eq=False)
class _Sums:
    """What the channels of each direction give some readers: `directions x numbers`."""

    even: Array
    odd: Array
    mass: Array
    lines: Array
    gates: Array | None
    """What multiplies the lines."""

    def taking(self, chosen: Array) -> _Sums:
        """Some directions alone."""
        gates = None if self.gates is None else self.gates[chosen]
        return _Sums(self.even[chosen], self.odd[chosen], self.mass[chosen], self.lines[chosen], gates)

    @property
    def alike(self) -> Array:
        """Inner products of the lines."""
        alike = self.lines @ self.lines.T
        return np.asarray(alike if self.gates is None else alike * (self.gates @ self.gates.T))

    @staticmethod
    def of(columns: Array, sign: Array, group: Array, bent: Bent, heads: Array) -> _Sums:
        even, odd, mass = (np.zeros((heads.size, columns.shape[1])) for _ in range(3))
        np.add.at(even, group, columns)
        np.add.at(odd, group, columns * sign[:, None])
        np.add.at(mass, group, np.abs(columns))
        lines = bent.vectors[heads] * (sign / np.where(bent.size > 0, bent.size, 1.0))[heads, None]
        return _Sums(even, odd, mass, lines, None if bent.gate is None else bent.gate[heads])


def _columns(subject: Subject, space: Space, bent: Bent, alive: Alive) -> Array:
    """How every direction is read, `width x numbers`, all living rows of an activation's readers side by side."""
    parts = []
    for consumer in space.consumers:
        if consumer.point not in bent.factors:
            continue
        linear = subject.graph.maps[consumer.map]
        part = subject.columns(space, consumer)
        if linear.groups == 1:
            part = part[alive.rows(linear).to(part.device)]
        wide = part.transpose(0, 1).reshape(space.width, -1).double().cpu().numpy()
        parts.append(wide * (bent.factors[consumer.point] * bent.size)[:, None])
    return np.concatenate(parts, axis=1)


def _signs(sums: Sequence[_Sums], flat: Array, zero: float) -> Array | None:
    """The signs with which lines stay what they are; None: there are none."""
    kept = np.flatnonzero(~flat)
    total, allowed, matrix, given = 0.0, 0.0, np.zeros((kept.size, kept.size)), np.zeros(kept.size)
    for part in sums:
        alike = part.alike
        total += float(((part.odd @ part.odd.T) * alike).sum())
        allowed += float(((norm(part.mass) * norm(part.lines)) ** 2).sum())
        matrix += (part.even[kept] @ part.even[kept].T) * alike[np.ix_(kept, kept)]
        given += ((part.even[kept] @ part.odd.T) * alike[kept]).sum(axis=1)
    signs, left = np.ones(flat.size), total
    read = np.diag(matrix) > 0
    if read.any():
        kept, matrix, given = kept[read], matrix[np.ix_(read, read)], given[read]
        scale = 1 / np.sqrt(np.diag(matrix))
        solved = np.linalg.lstsq(matrix * scale[:, None] * scale, given * scale, rcond=1e-13)[0] * scale
        signs[kept] = np.where(solved < 0, -1.0, 1.0)
        if np.abs(solved - signs[kept]).max() > 0.1:
            return None
        left = total + float(signs[kept] @ (matrix @ signs[kept] - 2 * given))
    return signs if left <= zero**2 * allowed else None


def _written(subject: Subject, place: MirroredSpace, merge: Merge) -> SpaceChange:
    """Columns go to one channel of each direction; where none has the right sign, one is turned."""
    space, into, transforms = place.space, merge.into, {}
    target = torch.from_numpy(np.where(merge.flat, -1, into))
    for bent in place.bends:
        for consumer in space.consumers:
            if consumer.point in bent.factors:
                whole = bent.size * bent.factors[consumer.point]
                passed = torch.from_numpy(whole / np.where(whole[into] != 0, whole[into], 1.0))
                transforms[consumer.tap] = ChannelTransform.merge(target, passed, space.width)
    tensors = move_columns(subject, space, transforms)
    if merge.turned.size:
        points = [point for bent in place.bends for point in (bent.factors if bent.beside else bent.stage.inputs)]
        tensors.update(negate(subject.with_tensors(tensors), space, torch.from_numpy(merge.turned), points))
    channels = torch.from_numpy(np.flatnonzero(merge.gone))
    tensors.update(drop(subject.with_tensors(tensors), space, channels))
    return SpaceChange(space.id, channels, tensors, noise=merge.noise)
