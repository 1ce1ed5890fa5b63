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


def mirrored(subject: Subject, facts: Facts) -> Rewrite | None:
    """One channel for each direction, with the sign that keeps the function."""
    steps: list[Step] = []
    for space in reversed(subject.narrowing):  # from the end: rows that cancel there are not read here
        if space.groups > 1:
            continue
        bent = _bent(subject, facts, space)
        if bent is None or not _glance(subject, facts, space, bent):
            continue
        step = _merge(subject, facts, space, bent)
        if step is not None:
            steps.append(step)
            subject = subject.with_tensors(step.tensors)
    return in_steps(steps)


def _bent(subject: Subject, facts: Facts, space: Space) -> Bent | None:
    """Whether every reader sees one function of a line, whose odd part is a line."""
    if not any(s.kind == "activation" and s.reach == "pointwise" for s in space.stages):
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


def _merge(subject: Subject, facts: Facts, space: Space, bent: Bent) -> Step | None:
    forms = Forms(subject, space, facts.parameters, None)
    vectors = forms.vectors(forms.at[bent.stage.inputs[0]])
    found = _directions(vectors, subject.tolerance.equal, np.zeros(space.width), _homogeneous(bent, facts))
    if not _has_mirrored(found):
        return None
    columns = _columns(subject, space, bent) * found.size[:, None]
    heads, group = np.unique(found.leader, return_inverse=True)
    even, odd, mass = (np.zeros((heads.size, columns.shape[1])) for _ in range(3))
    np.add.at(even, group, columns)
    np.add.at(odd, group, columns * found.sign[:, None])
    np.add.at(mass, group, np.abs(columns))
    flat = norm(even) <= subject.tolerance.zero * norm(mass)
    even[flat] = 0.0
    lines = vectors[heads] * (found.sign / np.where(found.size > 0, found.size, 1.0))[heads, None]
    signs = found.sign[heads]
    if facts.curves.of(bent.stage.function).odd:
        solved = _signs(even, odd, lines, flat, norm(mass) * norm(lines), subject.tolerance.zero)
        if solved is None:
            return None
        signs = solved
    return _written(subject, space, bent, found, heads, group, flat, signs)


def _columns(subject: Subject, space: Space, bent: Bent) -> Array:
    """How every channel's activation is read, `width x numbers`, all readers side by side."""
    parts = []
    for consumer in space.consumers:
        linear = subject.graph.maps[consumer.map]
        part = columns_of(subject.tensors[linear.weight], linear, consumer.offset, space.width * consumer.repeat)
        wide = part.transpose(0, 1).reshape(space.width, -1).double().cpu().numpy()
        parts.append(wide * bent.factors[consumer.point][:, None])
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


def _written(
    subject: Subject, space: Space, bent: Bent, found: Directions, heads: Array, group: Array, flat: Array, signs: Array
) -> Step | None:
    """Columns go to one channel of each direction; where none has the right sign, one is turned."""
    right = found.sign == signs[group]
    order = np.lexsort((np.arange(space.width), ~right, group))
    chosen = order[np.searchsorted(group[order], np.arange(heads.size))]
    into = chosen[group]
    gone = (into != np.arange(space.width)) | flat[group]
    turned = torch.from_numpy(chosen[~right[chosen] & ~flat])
    if not gone.any() or gone.all():
        return None
    ratio = found.size / np.where(found.size[into] > 0, found.size[into], 1.0)
    transforms = {}
    for consumer in space.consumers:
        factor = bent.factors[consumer.point]
        passed = ratio * factor / np.where(factor[into] != 0, factor[into], 1.0)
        transforms[consumer.tap] = ChannelTransform.merge(
            torch.from_numpy(np.where(flat[group], -1, into)), torch.from_numpy(passed), space.width
        )
    tensors = move_columns(subject, space, transforms)
    if turned.numel():
        tensors.update(negate(subject.with_tensors(tensors), space, turned, bent.stage.inputs[0]))
    channels = torch.from_numpy(np.flatnonzero(gone))
    tensors.update(drop(subject.with_tensors(tensors), space, channels))
    return Step(space.id, channels, tensors)
