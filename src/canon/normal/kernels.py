"""Kernels without zeros that do nothing: rings, gaps, groups; and layers one behind the other as one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from canon.normal.nodes import Affine, Graph, Linear, Node, is_zero, numbers

MOST_DENSE = 1 << 27
"""Numbers of the largest kernel that is written dense."""


def tidy_kernels(graph: Graph, *, crop: bool = True) -> list[str]:
    """Rings of zeros, gaps of zeros, and padding in front of a layer: each kernel as small as it can be."""
    said = []
    for node in graph.order:
        if node.kind != "linear" or not node.value.rank:
            continue
        padded = _with_padding(graph, node)
        if padded is not None:
            node.inputs, node.value = list(padded[0]), padded[1]
            graph.changed = True
        small = cropped(node.value) if crop else node.value
        if small is not node.value:
            before, after = (tuple(v.weight.shape[2:]) for v in (node.value, small))
            said.append(f"'{node.name}' has a kernel of {before} with zeros around or between {after}")
            node.value = small
            graph.changed = True
    return said


def _with_padding(graph: Graph, node: Node) -> tuple[list[Node], Linear] | None:
    """A layer that takes over the zeros that are padded in front of it."""
    source, value = node.inputs[0], node.value
    label = source.label
    if source.kind != "call" or not isinstance(label, tuple) or label[0] != "pad" or label[2:] != ("constant", 0.0):
        return None
    pads = label[1]
    if value.transposed is not None or value.mode != "zeros" or len(pads) > 2 * value.rank or min(pads) < 0:
        return None
    pairs = [(pads[2 * i], pads[2 * i + 1]) for i in range(len(pads) // 2)]
    pairs = [*reversed([*pairs, *[(0, 0)] * (value.rank - len(pairs))])]
    total = tuple((a + c, b + d) for (a, b), (c, d) in zip(value.padding, pairs, strict=True))
    return source.inputs, value.with_numbers(value.weight, value.bias, padding=total, outer=tuple(pairs))


def spell_diagonals(graph: Graph) -> list[str]:
    """Kernels that scale each channel by itself are affine maps, as norms are."""
    said = []
    for node in graph.order:
        if node.kind == "linear":
            found = diagonal(node.value)
            if found is not None:
                graph.replace(node, Node("affine", node.inputs, value=found, name=node.name, shape=node.shape))
                said.append(f"'{node.name}' scales each channel by itself: a norm written as a kernel")
    return said


def cropped(value: Linear) -> Linear:
    """The smallest kernel that computes the same."""
    weight = value.weight.detach()
    if weight.is_meta or value.transposed is not None or value.mode != "zeros":
        return value
    padding, dilation = list(value.padding), list(value.dilation)
    for axis in range(value.rank):
        lengths = [weight.shape[2 + a] for a in range(value.rank)]
        if lengths[axis] > 1:
            flat = weight.transpose(0, 2 + axis).reshape(lengths[axis], -1)
            used = (flat != 0).any(dim=1).nonzero().flatten()
            if not used.numel():
                continue
            first, last = int(used[0]), int(used[-1])
            before, behind = padding[axis]
            first = min(first, before // dilation[axis])
            last = max(last, lengths[axis] - 1 - behind // dilation[axis])
            weight = weight.narrow(2 + axis, first, last - first + 1)
            behind -= (lengths[axis] - 1 - last) * dilation[axis]
            padding[axis] = (before - first * dilation[axis], behind)
            steps = used - first
            gap = _gap(steps)
            if gap > 1 and (last - first) % gap == 0:
                index = torch.arange(0, last - first + 1, gap, device=weight.device)
                weight = weight.index_select(2 + axis, index)
                dilation[axis] *= gap
        if weight.shape[2 + axis] == 1:
            dilation[axis] = 1
    if weight.shape == value.weight.shape and tuple(dilation) == value.dilation:
        return value
    return value.with_numbers(weight.contiguous(), value.bias, padding=tuple(padding), dilation=tuple(dilation))


def _gap(steps: Tensor) -> int:
    gap = 0
    for step in steps.tolist():
        while step:
            gap, step = step, gap % step
    return gap


def spread(value: Linear) -> Linear:
    """A kernel with its gaps written out as zeros."""
    if all(d == 1 for d in value.dilation):
        return value
    weight = value.weight.detach()
    wide = weight.new_zeros(*weight.shape[:2], *value.reach)
    wide[(slice(None), slice(None), *(slice(None, None, d) for d in value.dilation))] = weight
    return value.with_numbers(wide, value.bias, dilation=(1,) * value.rank)


def dense(value: Linear) -> Linear | None:
    """A grouped or depthwise kernel with zeros where its groups do not read; None where that is too large."""
    if value.groups == 1:
        return value
    weight = value.weight.detach()
    rows, columns = weight.shape[0] // value.groups, weight.shape[1]
    if weight.numel() * value.groups > MOST_DENSE or value.transposed is not None:
        return None
    made = weight.new_zeros(weight.shape[0], columns * value.groups, *weight.shape[2:])
    for group in range(value.groups):
        inside = slice(group * rows, (group + 1) * rows)
        made[inside, group * columns : (group + 1) * columns] = weight[inside]
    return value.with_numbers(made, value.bias, groups=1)


def in_groups(value: Linear, groups: int) -> Linear | None:
    """A dense kernel in groups, where it is zero everywhere else; None where it is not."""
    if value.groups == groups:
        return value
    whole = dense(value)
    if whole is None or whole.weight.shape[0] % groups or whole.weight.shape[1] % groups:
        return None
    weight = whole.weight
    rows, columns = weight.shape[0] // groups, weight.shape[1] // groups
    parts = weight.reshape(groups, rows, groups, columns, *weight.shape[2:])
    index = torch.arange(groups, device=weight.device)
    inside = parts[index, :, index]
    if int(torch.count_nonzero(inside)) != int(torch.count_nonzero(weight)):
        return None
    return value.with_numbers(inside.reshape(-1, columns, *weight.shape[2:]), value.bias, groups=groups)


def common_geometry(values: Sequence[Linear]) -> list[Linear] | None:
    """Layers with kernels of one size and padding, so that they can be added up; None where they cannot."""
    first = values[0]
    spreads = []
    for value in values:
        whole = value if value.groups == first.groups else dense(value)
        if whole is None or value.transposed is not None or value.mode != "zeros" or value.stride != first.stride:
            return None
        spreads.append(spread(whole))
    if len({v.groups for v in spreads}) > 1:
        spreads = [d for v in spreads if (d := dense(v)) is not None]
        if len(spreads) < len(values):
            return None
    if len({tuple(v.weight.shape[:2]) for v in spreads}) > 1:
        return None
    made = []
    before = [max(v.padding[a][0] for v in spreads) for a in range(first.rank)]
    size = [max(v.weight.shape[2 + a] + before[a] - v.padding[a][0] for v in spreads) for a in range(first.rank)]
    for value in spreads:
        pads: list[int] = []
        padding = []
        for axis in reversed(range(first.rank)):
            front = before[axis] - value.padding[axis][0]
            back = size[axis] - front - value.weight.shape[2 + axis]
            pads += [front, back]
            padding.append((before[axis], value.padding[axis][1] + back))
        weight = functional.pad(value.weight.detach(), pads) if any(pads) else value.weight.detach()
        made.append(value.with_numbers(weight, value.bias, padding=tuple(reversed(padding))))
    return made if len({v.padding for v in made}) == 1 else None


def behind(first: Linear, second: Linear) -> Linear | None:
    """Two layers, one behind the other, as one; None where padding stands between them or that is too large."""
    if first.transposed is not None or second.transposed is not None or first.rank != second.rank:
        return None
    if first.mode != "zeros" or second.mode != "zeros":
        return None
    one, two = dense(spread(first)), dense(spread(second))
    if one is None or two is None:
        return None
    biased = not is_zero([one.bias])
    for axis in range(one.rank):
        padded = any(two.padding[axis])
        pointwise = one.weight.shape[2 + axis] == 1 and one.padding[axis] == (0, 0) and one.stride[axis] == 1
        if padded and (biased or not pointwise):
            return None
        if two.weight.shape[2 + axis] > 1 and one.stride[axis] != 1:
            return None
    bias = None
    if one.bias is not None or two.bias is not None:
        total = two.weight.detach().double().flatten(2).sum(2) if two.rank else two.weight.detach().double()
        bias = (total @ numbers(one.bias, one.weight) + numbers(two.bias, two.weight)).to(one.weight.dtype)
    weight = _composed(one.weight.detach().double(), two.weight.detach().double(), one.rank)
    stride = tuple(a * b for a, b in zip(one.stride, two.stride, strict=True))
    padding = tuple(
        (a + c * s, b + d * s) for (a, b), (c, d), s in zip(one.padding, two.padding, one.stride, strict=True)
    )
    return Linear(weight.to(one.weight.dtype), bias, stride, padding, (1,) * one.rank, 1, "zeros", None, first.name)


def _composed(one: Tensor, two: Tensor, rank: int) -> Tensor:
    """The kernel of `two` behind `one`: `W[o, i, t] = Σ two[o, m, a] · one[m, i, t − a]`."""
    if rank == 0:
        return two @ one
    if all(n == 1 for n in two.shape[2:]):
        return torch.einsum("om,mi...->oi...", two.flatten(1), one)
    if all(n == 1 for n in one.shape[2:]):
        return torch.einsum("om...,mi->oi...", two, one.flatten(1))
    convolve = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[rank]
    pads = [n - 1 for n in one.shape[2:]]
    flipped = one.transpose(0, 1).flip(dims=tuple(range(2, one.ndim)))
    return convolve(two, flipped, padding=pads)


def scaled(value: Linear, affine: Affine) -> Linear:
    """A layer that has taken up the affine map behind it."""
    weight, dtype = value.weight.detach().double(), value.weight.dtype
    width = weight.shape[0] if value.transposed is None else weight.shape[1] * value.groups
    scale = affine.scale.expand(width) if affine.scale.ndim == 0 else affine.scale
    shift = affine.shift.expand(width) if affine.shift.ndim == 0 else affine.shift
    if value.transposed is None:
        made = weight * scale.reshape(-1, *(1,) * (weight.ndim - 1))
    else:
        per = (
            scale.reshape(value.groups, 1, -1).expand(-1, weight.shape[0] // value.groups, -1).reshape(weight.shape[:2])
        )
        made = weight * per.reshape(*weight.shape[:2], *(1,) * (weight.ndim - 2))
    old = torch.zeros(width, dtype=torch.float64, device=weight.device)
    if value.bias is not None:
        old = value.bias.detach().double()
    bias = old * scale + shift
    kept = None if value.bias is None and not bool(bias.any()) else bias.to(dtype)
    return value.with_numbers(made.to(dtype), kept)


def preceded(affine: Affine, value: Linear) -> Linear | None:
    """A layer that has taken up the affine map before it; None where padding stands between them."""
    if value.transposed is not None or (bool(affine.shift.any()) and any(any(p) for p in value.padding)):
        return None
    weight = value.weight.detach().double()
    columns = weight.shape[1] * value.groups
    scale = affine.scale.expand(columns) if affine.scale.ndim == 0 else affine.scale
    shift = affine.shift.expand(columns) if affine.shift.ndim == 0 else affine.shift
    if len(scale) != columns or len(shift) != columns:
        return None
    index = torch.arange(columns, device=weight.device).reshape(value.groups, -1)
    index = index.repeat_interleave(weight.shape[0] // value.groups, dim=0)
    ones = (1,) * (weight.ndim - 2)
    made = weight * scale[index].reshape(*weight.shape[:2], *ones)
    bias = value.bias
    if bool(shift.any()):
        added = (weight * shift[index].reshape(*weight.shape[:2], *ones)).flatten(1).sum(1)
        bias = (numbers(value.bias, weight) + added).to(value.weight.dtype)
    return value.with_numbers(made.to(value.weight.dtype), bias)


def diagonal(value: Linear) -> Affine | None:
    """A kernel of one tap that scales each channel by itself, as an affine map; None where it does more."""
    weight = value.weight.detach()
    plain = value.transposed is None and value.mode == "zeros" and not weight.is_meta and value.rank > 0
    if not plain or any(n != 1 for n in weight.shape[2:]) or any(s != 1 for s in value.stride):
        return None
    if any(any(p) for p in value.padding) or weight.shape[0] != weight.shape[1] * value.groups:
        return None
    flat = weight.flatten(1)
    rows = torch.arange(len(flat), device=flat.device)
    scale = flat[rows, rows % flat.shape[1]]
    if int(torch.count_nonzero(flat)) != int(torch.count_nonzero(scale)):
        return None
    return Affine(scale.double(), numbers(value.bias, weight))
