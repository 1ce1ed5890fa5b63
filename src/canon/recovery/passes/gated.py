"""Channels behind one gate: `f(u)·v₁`, `f(u)·v₂`, … with lines `v`, as in the blocks of transformers.

Readers take `f(u) · Σ cᵢvᵢᵀ` from them, and as many channels as that matrix has rank are enough. So where lines depend
on each other, readers take some channels from others; where columns do, channels take up the lines of others. What
is left then has lines and columns that are independent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import matmul

import numpy as np
import torch

from canon.describe import Array, Signature, Stack, cluster
from canon.describe.arrays import norm
from canon.graph import Producer, Space
from canon.recovery.facts import Facts, Subject
from canon.recovery.facts.forms import Forms
from canon.recovery.passes.basis import as_sums, independent
from canon.recovery.passes.mirrored import glance
from canon.recovery.proposal import Proposal, SpaceChange, add_up, drop, space_by_space, unread
from canon.rewrite.spec import SpaceRewrite
from canon.rewrite.tensors import row_transform
from canon.rewrite.weights import write_vector, write_weight
from canon.transforms import ChannelTransform


@dataclass(frozen=True, eq=False)
class Gated:
    """What a space computes, if it is products of a line and one function of another, and nothing else."""

    up: Producer
    """The layer that makes the lines."""

    lines: Array
    """`width x numbers`."""

    leader: Array
    """By channel: the first one with the same gate."""


def gated(subject: Subject, facts: Facts) -> Proposal | None:
    """As many channels behind each gate as it takes."""
    spaces = [s for s in subject.narrowing if s.groups == 1 and any(stage.kind == "mul" for stage in s.stages)]
    found = space_by_space(subject, spaces, lambda now, space: _fewer(now, facts, space))
    return None if found is None else replace(found, again=True)


def _fewer(subject: Subject, facts: Facts, space: Space) -> SpaceChange | None:
    seen = _gated(subject, facts, space) if glance(subject, space) else None
    if seen is None:
        return None
    read = torch.cat([subject.columns(space, consumer).movedim(1, 0).flatten(1) for consumer in space.consumers], dim=1)
    for vectors, write in ((seen.lines, _read_from_others), (read.double().cpu().numpy(), _made_of_others)):
        sums = [_sums(vectors, np.flatnonzero(seen.leader == head), subject.tolerance.zero)
                for head in np.unique(seen.leader)]  # fmt: skip
        found = [part for part in sums if part is not None]
        if found:
            return write(subject, space, seen.up, found)
    return None


@dataclass(frozen=True, eq=False)
class Sum:
    """Channels that are sums of others."""

    gone: Array
    kept: Array
    coefficients: Array
    """`gone x kept`."""

    off: float
    """How far they are from these sums."""


def _sums(vectors: Array, members: Array, tolerance: float) -> Sum | None:
    """Vectors of some channels that are sums of others of them; None: there are none."""
    size = norm(vectors[members])
    if members.size < 2 or not size.all() or vectors.shape[1] < 2 * members.size:
        return None
    kept = independent(vectors[members] / size[:, None], tolerance)
    gone = np.setdiff1d(np.arange(members.size), kept)
    if not gone.size:
        return None
    known, those = vectors[members[kept]], vectors[members[gone]]
    coefficients = np.linalg.lstsq(known.T, those.T, rcond=None)[0].T
    off = float((norm(those - coefficients @ known) / norm(those)).max())
    return Sum(members[gone], members[kept], coefficients, off) if off <= 4 * tolerance else None


def _gated(subject: Subject, facts: Facts, space: Space) -> Gated | None:
    products = [stage for stage in space.stages if stage.kind == "mul"]
    makers = {producer.point: producer for producer in space.producers}
    if len(products) != 1 or {consumer.point for consumer in space.consumers} != {products[0].output}:
        return None
    ups = [point for point in products[0].inputs if point in makers]
    forms = Forms(subject, space, facts.parameters, None)
    gates = [forms.at.get(point) for point in products[0].inputs if point not in makers]
    gate = gates[0] if len(gates) == len(ups) == 1 else None
    if gate is None or gate.bend is None:
        return None
    up = makers[ups[0]]
    maps = {producer.map for producer in space.producers}
    shared = len({subject.graph.maps[index].weight for index in maps}) < len(maps)
    tied = subject.graph.taps[up.point] in {subject.graph.taps[p.point] for p in space.producers if p is not up}
    if gate.lines or gate.offset.any() or (gate.bend.factor != 1).any() or shared or tied or up.repeat > 1:
        return None
    vectors = forms.vectors(forms.at[gate.bend.stage.inputs[0]])
    size = norm(vectors)
    unit = vectors / np.where(size > 0, size, 1.0)[:, None]
    stacks = [Stack(unit[None], None, True), Stack(np.log(np.where(size > 0, size, 1.0))[None, :, None], None, True)]
    leader = cluster(Signature(space.width, stacks), np.zeros(space.width, dtype=np.int64), subject.tolerance.equal)
    return Gated(up, forms.vectors(forms.at[up.point]), leader)


def _transform(width: int, sums: list[Sum]) -> ChannelTransform:
    """Channels that are gone as sums of those that are kept."""
    return reduce(matmul, (as_sums(width, one.kept, one.gone, one.coefficients) for one in sums))


def _read_from_others(subject: Subject, space: Space, _: Producer, sums: list[Sum]) -> SpaceChange:
    """Lines are sums of others: readers take the channels from those."""
    gone = torch.from_numpy(np.concatenate([one.gone for one in sums]))
    transform, off = _transform(space.width, sums), max(one.off for one in sums)
    tensors, noise = add_up(subject, space, {consumer.tap: transform for consumer in space.consumers}, off)
    tensors.update(drop(subject.with_tensors(tensors), space, gone))
    return SpaceChange(space.id, gone, tensors, noise=noise)


def _made_of_others(subject: Subject, space: Space, up: Producer, sums: list[Sum]) -> SpaceChange:
    """Columns are sums of others: the channels of those take up the lines."""
    gone, linear = torch.from_numpy(np.concatenate([one.gone for one in sums])), subject.graph.maps[up.map]
    taken = {subject.graph.taps[up.point]: _transform(space.width, sums)}
    same = ChannelTransform.identity(space.width)
    rows = row_transform(linear, {space.id: SpaceRewrite(space.width, same.rows, same, rows=taken)})
    tensors = {linear.weight: write_weight(subject.tensors[linear.weight], linear, rows, None)}
    if linear.bias is not None:
        tensors[linear.bias] = write_vector(subject.tensors[linear.bias], rows)
    tensors.update(unread(subject.with_tensors(tensors), space, gone))
    return SpaceChange(space.id, gone, tensors, noise=max(one.off for one in sums))
