"""Norms that a program writes out in primitives: known by what they do to random numbers of several sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, fx, nn

if TYPE_CHECKING:
    from canon.normal.running import Running

PARTS: Final = frozenset(
    "mean var var_mean std std_mean sum norm vector_norm linalg_vector_norm sub add mul div truediv multiply divide "
    "subtract pow square sqrt rsqrt reciprocal neg permute transpose view reshape getitem unsqueeze squeeze addcmul "
    "addcdiv expand movedim contiguous flatten unflatten float double to layer_norm rms_norm group_norm instance_norm "
    "clone detach expand_as view_as".split()
)
"""What norms are written with."""

WHOLE: Final = frozenset(
    "mean var var_mean std std_mean sum norm vector_norm linalg_vector_norm layer_norm rms_norm group_norm "
    "instance_norm".split()
)
"""Functions that look at many numbers, one of which every norm has."""

DEEPEST: Final = 24
"""Operations of one norm."""

SIZES: Final = (1.0, 1e-2, 1e2)
EXACT: Final = 1e-6
LARGE: Final = 1e9


def normalise(made: Running, called: Callable[[fx.Node], str], kind: torch.dtype) -> bool:
    """Write norms as layers; gives whether there was one."""
    changed = False
    done: set[fx.Node] = set()
    for node in reversed(list(made.graph.nodes)):
        if node in done or not node.users or not _part(node, called) or made.constant(node):
            continue
        for source, between in _stretches(made, node, called):
            form = _form(made, node, source, between, kind)
            if form is None:
                continue
            with made.graph.inserting_before(node):
                written = made.layers(source, form)
            node.replace_all_uses_with(written)
            done |= set(between)
            made.said.append(f"'{between[0].name}' to '{node.name}' are a norm, written out")
            changed = True
            break
    return changed


def _part(node: fx.Node, called: Callable[[fx.Node], str]) -> bool:
    return node.op in ("call_function", "call_method") and called(node) in PARTS


def _stretches(
    made: Running, node: fx.Node, called: Callable[[fx.Node], str]
) -> Iterator[tuple[fx.Node, list[fx.Node]]]:
    """Values of the same shape that this one is made from alone, the nearest first, with all that is between."""
    cone: list[fx.Node] = []
    edge = [node]
    while edge and len(cone) < DEEPEST:
        # The operation that stands last in the program is the next one back.
        at = edge.pop(edge.index(max(edge)))
        if at in cone:
            continue
        inside = at is node or all(user in cone for user in at.users)
        if not _part(at, called) or not inside:
            return
        cone.append(at)
        edge += [n for n in at.all_input_nodes if not made.constant(n) and n not in edge]
        if len(edge) == 1 and made.shape.get(edge[0]) == made.shape.get(node) and any(called(n) in WHOLE for n in cone):
            yield edge[0], sorted(_with_constants(made, cone))


def _with_constants(made: Running, cone: list[fx.Node]) -> set[fx.Node]:
    found, stack = set(cone), list(cone)
    while stack:
        for source in stack.pop().all_input_nodes:
            if made.constant(source) and source not in found:
                found.add(source)
                stack.append(source)
    return found


def _form(
    made: Running, node: fx.Node, source: fx.Node, between: list[fx.Node], kind: torch.dtype
) -> tuple[Any, ...] | None:
    shape = made.shape[source]
    if not shape or len(shape) < 2:
        return None

    def ask(x: Tensor) -> Tensor:
        known: dict[fx.Node, Any] = {source: x}
        for step in between:
            known[step] = made.call(step, known)
        return known[node]  # type: ignore[no-any-return]

    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.5
    try:
        answers = {size: ask(size * x) for size in (*SIZES, LARGE)}
        shift = ask(torch.zeros_like(x))
    except Exception:  # an operation that does not run by itself
        return None
    for axis, plain, layer in _norms(shape):
        free = plain(x, 0.0)
        gain, bias = (_by_axis(t, axis) for t in ((answers[LARGE] - shift) / free, shift))
        if gain is None or bias is None or not bool(gain.all()):
            continue
        small = 1e-3
        ratio = ((plain(small * x, 0.0) * _along(gain, axis, x.ndim)) / (ask(small * x) - shift)) ** 2 - 1
        # The square of the divisor is larger by epsilon: by how much tells epsilon from the numbers' own size.
        unit = (small * x / plain(small * x, 0.0)) if layer == "rms" else None
        spread = _spread(small * x, axis, layer) if unit is None else unit**2
        eps = float(f"{float((ratio * spread).median()):.3g}")
        if not 0 <= eps < 1:
            continue
        fits = all(
            bool(
                (plain(s * x, eps) * _along(gain, axis, x.ndim) + _along(bias, axis, x.ndim) - answers[s]).abs().max()
                <= EXACT * (answers[s].abs().max() + 1e-30)
            )
            for s in SIZES
        )
        if fits:
            return _written(shape, axis, layer, gain.to(kind), bias.to(kind), eps)
    return None


def _norms(shape: tuple[int, ...]) -> Iterator[tuple[int, Callable[[Tensor, float], Tensor], Any]]:
    """Norms that are known again, by the axis of their numbers."""
    for axis in dict.fromkeys((len(shape) - 1, 1)):
        if shape[axis] > 1:
            yield axis, partial(_centred, axes=(axis,)), "layer"
            yield axis, partial(_by_size, axis=axis), "rms"
    if len(shape) > 2:
        for groups in (n for n in range(1, min(shape[1], 64) + 1) if shape[1] % n == 0):
            yield 1, partial(_grouped, groups=groups), groups


def _by_size(x: Tensor, eps: float, axis: int) -> Tensor:
    return x / (x.square().mean(axis, keepdim=True) + eps).sqrt()


def _centred(x: Tensor, eps: float, axes: tuple[int, ...]) -> Tensor:
    off = x - x.mean(axes, keepdim=True)
    return off / (off.square().mean(axes, keepdim=True) + eps).sqrt()


def _grouped(x: Tensor, eps: float, groups: int) -> Tensor:
    return _centred(x.reshape(len(x), groups, -1), eps, (2,)).reshape(x.shape)


def _spread(x: Tensor, axis: int, layer: Any) -> Tensor:
    if layer == "layer":
        return (x - x.mean(axis, keepdim=True)).square().mean(axis, keepdim=True).expand_as(x)
    flat = x.reshape(len(x), layer, -1)
    return (flat - flat.mean(2, keepdim=True)).square().mean(2, keepdim=True).expand_as(flat).reshape(x.shape)


def _by_axis(value: Tensor, axis: int) -> Tensor | None:
    """One number for each place of an axis, where there is no more to a value."""
    flat = value.movedim(axis, -1).reshape(-1, value.shape[axis])
    first = flat.median(0).values
    size = first.abs().max()
    return first if bool((flat - first).abs().max() <= EXACT * (size + 1e-30)) else None


def _along(numbers: Tensor, axis: int, rank: int) -> Tensor:
    return numbers.reshape([-1 if place == axis else 1 for place in range(rank)])


def _written(
    shape: tuple[int, ...], axis: int, layer: Any, gain: Tensor, bias: Tensor, eps: float
) -> tuple[Any, ...] | None:
    made: Any
    if layer == "rms":
        if bool(bias.any()):
            return None
        made = nn.RMSNorm(shape[axis], eps)
    else:
        made = nn.LayerNorm(shape[axis], eps) if layer == "layer" else nn.GroupNorm(layer, shape[1], eps)
        made.bias = nn.Parameter(bias, requires_grad=False)
    made.weight = nn.Parameter(gain, requires_grad=False)
    if isinstance(layer, int) or axis == len(shape) - 1:
        return (made,)
    rank = len(shape)
    back = (0, rank - 1, *range(1, rank - 1))
    return (("permute", (0, *range(2, rank), 1)), made, ("permute", back))
