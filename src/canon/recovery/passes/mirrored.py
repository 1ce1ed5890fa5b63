"""Channels `f(u)` and `f(−u)`: groups of them give less than they seem to, although no two are proportional.

For ReLU, GELU, SiLU, Hardswish and others, `f(u) = even(u) + κ/2·u`. With `w` for columns, channels along one
direction `u` add up to an even part `e = Σ w` and a line `d = Σ ±w`. One channel `f(o·u)`, with the sign `o` of our
choice, has the even part `e` and the line `o·e`. So one channel per direction is enough, and none where `e = 0`, if
there are signs for which all lines together stay what they are: `Σ o·e⊗u = Σ d⊗u`. These equations are linear in
`o`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from canon.describe import Array, Signature, Stack, cluster
from canon.describe.arrays import norm
from canon.graph import Space, Stage
from canon.recovery.facts import Facts, Subject
from canon.recovery.facts.alive import Alive, settled
from canon.recovery.facts.forms import Forms
from canon.recovery.facts.subject import by_row, columns_of
from canon.recovery.rewriting import Rewrite, Step, drop, in_steps, move_columns, negate
from canon.transforms import ChannelTransform

GLANCE: Final = (12, 4)
"""Inputs, and numbers of their kernels, by which directions are compared first."""


@dataclass(frozen=True, eq=False)
class Bent:
    """The one activation of a space, and how readers see it."""

    stage: Stage
    factors: dict[int, Array]
    """By consumer's point: what multiplies the activation."""


@dataclass(frozen=True, eq=False)
class Directions:
    """Channels by the direction of their filters."""

    leader: Array
    sign: Array
    size: Array
    """Channel = size x f(sign x direction)."""


@dataclass(frozen=True, eq=False)
class Place:
    """A space that holds mirrored channels."""

    space: Space
    bent: Bent
    vectors: Array
    """What the function is applied to, as numbers, `width x numbers`."""

    directions: Directions
    paired: Array
    """Channels along whose direction both signs occur."""


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


def mirrored(subject: Subject, facts: Facts) -> Rewrite | None:
    """One channel for each direction, with the sign that keeps the function."""
    places: dict[int, Place] = {}
    for space in subject.narrowing:
        bent = _bent(subject, facts, space) if space.groups == 1 else None
        if bent is not None and _glance(subject, facts, space, bent):
            place = _place(subject, facts, space, bent)
            if place is not None:
                places[space.id] = place
    if not places:
        return None
    # Assume that all mirrored channels are gone, and see whether the living readers do without them.
    gone = {index: place.paired for index, place in places.items()}
    while True:
        alive = Alive(subject, gone)
        merges = {index: _merge(subject, facts, places[index], alive) for index in gone}
        found = {index: merge.gone for index, merge in merges.items() if merge is not None}
        if settled(gone, found):
            break
        gone = found
    steps: list[Step] = []
    for index in sorted(gone, reverse=True):
        merge = merges[index]
        assert merge is not None, "what is gone was merged"
        steps.append(_written(subject, places[index], merge))
        subject = subject.with_tensors(steps[-1].tensors)
    return in_steps(steps)


def _bent(subject: Subject, facts: Facts, space: Space) -> Bent | None:
    """Whether every reader sees one function of a line, whose odd part is a line."""
    if sum(s.kind == "activation" and s.reach == "pointwise" for s in space.stages) != 1:
        return None
    forms = Forms(subject, space, facts.parameters, None)
    factors: dict[int, Array] = {}
    stage = None
    for consumer in space.consumers:
        form = forms.at.get(consumer.point)
        if form is None or form.bend is None or form.lines or form.offset.any():
            return None
        if stage not in (None, form.bend.stage):
            return None
        stage, factors[consumer.point] = form.bend.stage, form.bend.factor
    if stage is None or not facts.curves.of(stage.function).half:
        return None
    names = [name for s in space.stages for name in s.params.values()]
    names += [subject.graph.maps[p.map].weight for p in space.producers]
    return Bent(stage, factors) if len(names) == len(set(names)) else None


def _glance(subject: Subject, facts: Facts, space: Space, bent: Bent) -> bool:
    """Whether some numbers of the rows suggest that two channels are mirrored."""
    form = Forms(subject, space, facts.parameters, None).at[bent.stage.inputs[0]]
    parts = []
    for place, producer in enumerate(space.producers):
        if place in form.lines:
            linear = subject.graph.maps[producer.map]
            rows = by_row(subject.tensors[linear.weight], linear)[producer.offset : producer.offset + space.width]
            seen = rows[:, : GLANCE[0], : GLANCE[1]].flatten(1).double().cpu().numpy()
            parts.append(seen * form.lines[place][:, None])
    vectors = np.concatenate(parts, axis=1)
    return _has_mirrored(
        _directions(vectors, subject.tolerance.equal, np.zeros(space.width), _homogeneous(bent, facts))
    )


def _has_mirrored(found: Directions) -> bool:
    return bool((found.sign != found.sign[found.leader]).any())


def _homogeneous(bent: Bent, facts: Facts) -> bool:
    return facts.curves.of(bent.stage.function).homogeneous


def _directions(vectors: Array, tolerance: float, label: Array, homogeneous: bool) -> Directions:
    """Channels whose vectors agree up to sign, and up to size where that passes the function."""
    size = norm(vectors)
    unit = vectors / np.where(size > 0, size, 1.0)[:, None]
    # The sign of the largest entry that most have: a projection that no vector is likely to be at right angles to.
    probe = np.random.default_rng(0).standard_normal(vectors.shape[1])
    sign = np.where(unit @ probe < 0, -1.0, 1.0)
    stacks = [Stack((unit * sign[:, None])[None], None, True)]
    if not homogeneous:
        stacks.append(Stack(np.log(np.where(size > 0, size, 1.0))[None, :, None], None, True))
    leader = cluster(Signature(len(vectors), stacks), label.astype(np.int64), tolerance)
    return Directions(leader, sign, size if homogeneous else np.ones_like(size))


def _place(subject: Subject, facts: Facts, space: Space, bent: Bent) -> Place | None:
    forms = Forms(subject, space, facts.parameters, None)
    vectors = forms.vectors(forms.at[bent.stage.inputs[0]])
    found = _directions(vectors, subject.tolerance.equal, np.zeros(space.width), _homogeneous(bent, facts))
    if not _has_mirrored(found):
        return None
    both = np.zeros(space.width, dtype=bool)
    both[found.leader[found.sign != found.sign[found.leader]]] = True
    return Place(space, bent, vectors, found, both[found.leader])


def _merge(subject: Subject, facts: Facts, place: Place, alive: Alive) -> Merge | None:
    """What becomes of the channels, as far as living readers see them; None: there are no signs that fit."""
    found, zero = place.directions, subject.tolerance.zero
    columns = _columns(subject, place, alive) * found.size[:, None]
    heads, group = np.unique(found.leader, return_inverse=True)
    even, odd, mass = (np.zeros((heads.size, columns.shape[1])) for _ in range(3))
    np.add.at(even, group, columns)
    np.add.at(odd, group, columns * found.sign[:, None])
    np.add.at(mass, group, np.abs(columns))
    flat = (norm(even) <= zero * norm(mass)) & place.paired[heads]
    even[flat] = 0.0
    lines = place.vectors[heads] * (found.sign / np.where(found.size > 0, found.size, 1.0))[heads, None]
    signs = found.sign[heads]
    if facts.curves.of(place.bent.stage.function).odd:
        solved = _signs(even, odd, lines, norm(even) == 0, norm(mass) * norm(lines), zero)
        if solved is None:
            return None
        signs = np.where(norm(mass) > 0, solved, signs)
    right = found.sign == signs[group]
    order = np.lexsort((np.arange(found.sign.size), ~right, group))
    chosen = order[np.searchsorted(group[order], np.arange(heads.size))]
    into = chosen[group]
    gone = (into != np.arange(found.sign.size)) | flat[group]
    if not gone.any() or gone.all():
        return None
    return Merge(into, flat[group], gone, chosen[~right[chosen] & ~flat])


def _columns(subject: Subject, place: Place, alive: Alive) -> Array:
    """How every channel's activation is read, `width x numbers`, all living rows of all readers side by side."""
    parts, space = [], place.space
    for consumer in space.consumers:
        linear = subject.graph.maps[consumer.map]
        part = columns_of(subject.tensors[linear.weight], linear, consumer.offset, space.width * consumer.repeat)
        if linear.groups == 1:
            part = part[alive.rows(linear).to(part.device)]
        wide = part.transpose(0, 1).reshape(space.width, -1).double().cpu().numpy()
        parts.append(wide * place.bent.factors[consumer.point][:, None])
    return np.concatenate(parts, axis=1)


def _signs(even: Array, odd: Array, lines: Array, flat: Array, mass: Array, zero: float) -> Array | None:
    """The signs with which lines stay what they are; None: there are none."""
    alike = lines @ lines.T
    kept = np.flatnonzero(~flat)
    total = float(((odd @ odd.T) * alike).sum())
    signs = np.ones(len(even))
    left = total
    if kept.size:
        matrix = (even[kept] @ even[kept].T) * alike[np.ix_(kept, kept)]
        given = ((even[kept] @ odd.T) * alike[kept]).sum(axis=1)
        scale = 1 / np.sqrt(np.diag(matrix))
        solved = np.linalg.lstsq(matrix * scale[:, None] * scale, given * scale, rcond=1e-13)[0] * scale
        signs[kept] = np.where(solved < 0, -1.0, 1.0)
        if np.abs(solved - signs[kept]).max() > 0.1:
            return None
        left = total - 2 * signs[kept] @ given + signs[kept] @ matrix @ signs[kept]
    return signs if left <= zero**2 * float((mass**2).sum()) else None


def _written(subject: Subject, place: Place, merge: Merge) -> Step:
    """Columns go to one channel of each direction; where none has the right sign, one is turned."""
    space, bent, size, into = place.space, place.bent, place.directions.size, merge.into
    ratio = size / np.where(size[into] > 0, size[into], 1.0)
    transforms = {}
    for consumer in space.consumers:
        factor = bent.factors[consumer.point]
        passed = ratio * factor / np.where(factor[into] != 0, factor[into], 1.0)
        target = torch.from_numpy(np.where(merge.flat, -1, into))
        transforms[consumer.tap] = ChannelTransform.merge(target, torch.from_numpy(passed), space.width)
    tensors = move_columns(subject, space, transforms)
    if merge.turned.size:
        turned = torch.from_numpy(merge.turned)
        tensors.update(negate(subject.with_tensors(tensors), space, turned, bent.stage.inputs[0]))
    channels = torch.from_numpy(np.flatnonzero(merge.gone))
    tensors.update(drop(subject.with_tensors(tensors), space, channels))
    return Step(space.id, channels, tensors)
