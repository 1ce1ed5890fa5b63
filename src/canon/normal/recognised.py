"""Which layer a linear function is: asked for its derivative at two places, and held against it on random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.normal.running import Step

EXACT: Final = 1e-6
"""Differences from the layer, relative to the range: stretches may hold casts to float32."""

MOST_ENTRIES: Final = 1 << 25
"""Numbers of the largest derivative that is asked for at once."""

Layout = tuple[tuple[str, tuple[Any, ...]], ...]


@dataclass(frozen=True, eq=False)
class Form:
    """A linear function as steps, one behind the other; none: the value itself."""

    steps: tuple[Step, ...]


def recognise(ask: Callable[[Tensor], Tensor], shape: tuple[int, ...], shift: Tensor, kind: torch.dtype) -> Form | None:
    """The layer that a linear function is, if it is one.

    Args:
        ask: The function, in float64; zero for zero.
        shape: What it reads.
        shift: What is added to it besides.
        kind: The type of the model's tensors.
    """
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(shape, generator=generator, dtype=torch.float64)
    answer = ask(probe).detach()
    size = float(answer.abs().max())
    if size == 0:
        return None
    if answer.shape == probe.shape:
        factor = float((answer * probe).sum() / (probe * probe).sum())
        if bool(((answer - factor * probe).abs() <= EXACT * size).all()):
            scaled: tuple[Step, ...] = () if abs(factor - 1) < EXACT else (("mul", (factor,)),)
            return _shifted(scaled, shift, kind)
    derivative = _Derivative(ask, shape, tuple(answer.shape))
    for steps in _candidates(derivative, shape, tuple(answer.shape), shift, kind):
        with torch.no_grad():
            value = probe
            for step in steps:
                value = _apply(step, value)
        if value.shape == answer.shape and bool((value - shift - answer).abs().max() <= EXACT * (size + 1e-30)):
            return Form(tuple(_typed(step, kind) for step in steps))
    return None


def _shifted(steps: tuple[Step, ...], shift: Tensor, kind: torch.dtype) -> Form:
    if not bool(shift.any()):
        return Form(steps)
    return Form((*steps, _typed(_smallest(shift), kind)))


def _smallest(shift: Tensor) -> Tensor:
    """A constant without the axes along which it does not change."""
    for axis in range(shift.ndim):
        first = shift.narrow(axis, 0, 1)
        if torch.equal(first.expand_as(shift), shift):
            shift = first
    return shift.clone()


def _typed(step: Any, kind: torch.dtype) -> Step:
    return step.to(kind) if isinstance(step, nn.Module | Tensor) else step


def _apply(step: Step, value: Tensor) -> Tensor:
    if isinstance(step, nn.Module):
        return step(value)  # type: ignore[no-any-return]
    if isinstance(step, Tensor):
        return value + step
    return getattr(value, step[0])(*step[1])  # type: ignore[no-any-return]


class _Derivative:
    """Rows of the matrix that a linear function is."""

    def __init__(self, ask: Callable[[Tensor], Tensor], before: tuple[int, ...], after: tuple[int, ...]) -> None:
        self.before, self.after = before, after
        self.x = torch.zeros(before, dtype=torch.float64, requires_grad=True)
        with torch.enable_grad():
            self.y = ask(self.x)

    def rows(self, places: Tensor) -> Tensor:
        """By entry of the result, by its number: what it takes of every entry that is read."""
        if len(places) * prod(self.before) > 2 * MOST_ENTRIES:
            raise MemoryError("a stretch that is too wide to be asked")
        many = max(1, MOST_ENTRIES // max(prod(self.after), prod(self.before)))
        found = []
        for part in places.split(many):
            chosen = torch.zeros(len(part), prod(self.after), dtype=torch.float64)
            chosen[torch.arange(len(part)), part] = 1
            (grad,) = torch.autograd.grad(
                self.y, self.x, chosen.reshape(len(part), *self.after), retain_graph=True, is_grads_batched=True
            )
            found.append(grad)
        return torch.cat(found)


def _candidates(
    derivative: _Derivative, before: tuple[int, ...], after: tuple[int, ...], shift: Tensor, kind: torch.dtype
) -> Iterator[list[Step]]:
    numbers = torch.arange(prod(after)).reshape(after)
    if before[:-1] == after[:-1] and len(before) >= 2:
        rows = derivative.rows(numbers.reshape(-1, after[-1])[0])
        weight = rows.reshape(after[-1], -1, before[-1])[:, 0]
        yield [*_linear(weight, shift.reshape(-1, after[-1]))]
    if len(before) == len(after) >= 3 and before[1:-1] == after[2:]:
        rows = derivative.rows(numbers.movedim(1, -1).reshape(-1, after[1])[0])
        weight = rows.reshape(after[1], -1, before[-1])[:, 0]
        yield [*_linear(weight, shift.movedim(1, -1).reshape(-1, after[1])), ("movedim", (-1, 1))]
    if len(after) == 2 and len(before) >= 3:
        yield from _pooled(derivative.rows(numbers[0]), before, after, shift)
    if len(before) < 3:
        return
    for enter in _layouts(before):
        middle = _moved(before, enter)
        for leave in _ways_out(middle, after):
            ordered = _through(numbers, _undone(leave, middle, after))
            steps = _convolution(derivative, enter, middle, ordered, _through(shift, _undone(leave, middle, after)))
            if steps is not None:
                yield [*enter, *steps, *leave]


def _linear(weight: Tensor, shift: Tensor) -> list[Step]:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bool(shift.any()), dtype=torch.float64)
    layer.weight = nn.Parameter(weight.clone(), requires_grad=False)
    if layer.bias is not None:
        layer.bias = nn.Parameter(shift[0].clone(), requires_grad=False)
    return [layer]


def _pooled(rows: Tensor, before: tuple[int, ...], after: tuple[int, ...], shift: Tensor) -> Iterator[list[Step]]:
    axes = tuple(range(2, len(before)))
    for enter in _layouts(before):
        own = torch.stack([_through(row, enter) for row in rows])[:, 0]
        flat = own.flatten(2)
        if prod(own.shape[2:]) > 1 and bool(((flat - flat[:, :, :1]).abs() <= EXACT * own.abs().max()).all()):
            yield [("mean", (tuple(a - 1 for a in axes) if enter else axes,)), *_unless_unit(flat.sum(2), shift)]
    if prod(before[1:]) * after[1] <= MOST_ENTRIES:
        for enter in _layouts(before):
            own = torch.stack([_through(row, enter) for row in rows])[:, 0]
            yield [*enter, ("flatten", (1,)), *_unless_unit(own.flatten(1), shift)]


def _unless_unit(weight: Tensor, shift: Tensor) -> list[Step]:
    """A linear layer, where it does anything."""
    square = weight.shape[0] == weight.shape[1] and not bool(shift.any())
    unit = square and torch.allclose(weight, torch.eye(len(weight), dtype=weight.dtype), atol=EXACT)
    return [] if unit else _linear(weight, shift)


def _layouts(shape: tuple[int, ...]) -> list[Layout]:
    """Ways to bring channels to the second axis."""
    last: Layout = (("movedim", (-1, 1)),)
    return [(), last] if len(shape) >= 3 else [()]


def _ways_out(middle: tuple[int, ...], after: tuple[int, ...]) -> Iterator[Layout]:
    """From `batch x channels x positions` to a result's shape."""
    rank = len(middle) - 2
    if len(after) == rank + 2:
        yield ()
        yield (("movedim", (1, -1)),)
        if rank == 2:
            yield (("transpose", (2, 3)),)
    if rank == 2 and len(after) == 3:
        yield (("flatten", (2,)), ("transpose", (1, 2)))
        yield (("flatten", (2,)),)


def _undone(leave: Layout, middle: tuple[int, ...], after: tuple[int, ...]) -> Layout:
    if not leave:
        return ()
    names = [step[0] for step in leave]
    if names == ["movedim"]:
        return (("movedim", (-1, 1)),)
    if names == ["transpose"]:
        return leave
    count = after[1] if len(names) == 2 else after[2]
    high, wide = middle[2], middle[3]
    rows = isqrt(count * high // wide) if wide else 0
    sides = (rows, count // rows) if rows and count % rows == 0 else (1, count)
    turned: Layout = (("transpose", (1, 2)),) if len(names) == 2 else ()
    return (*turned, ("unflatten", (2, sides)))


def _through(value: Tensor, layout: Sequence[tuple[str, tuple[Any, ...]]]) -> Tensor:
    for name, settings in layout:
        value = getattr(value, name)(*settings)
    return value


def _moved(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    return tuple(_through(torch.empty(shape, device="meta"), layout).shape)


def _convolution(
    derivative: _Derivative, enter: Layout, middle: tuple[int, ...], ordered: Tensor, shift: Tensor
) -> list[Step] | None:
    """The convolution that has these rows at the middle position and one beside it, by axis."""
    sides, given = ordered.shape[2:], middle[2:]
    rank = len(sides)
    centre = tuple(n // 2 for n in sides)

    def row(place: tuple[int, ...]) -> Tensor:
        at: Any = (0, slice(None), *place)
        rows = derivative.rows(ordered[at])
        return torch.stack([_through(r, enter) for r in rows])[:, 0]

    rows = row(centre)
    low, high = _box(rows)
    if low is None or high is None:
        return None
    stride = []
    for axis in range(rank):
        if sides[axis] == 1:
            stride.append(1)
            continue
        step = -1 if centre[axis] + 1 >= sides[axis] else 1
        beside = _box(row((*centre[:axis], centre[axis] + step, *centre[axis + 1 :])))[0]
        if beside is None:
            return None
        stride.append((beside[axis] - low[axis]) * step)
    if any(s < 1 for s in stride):
        return None
    inside: Any = (slice(None), slice(None), *(slice(a, b + 1) for a, b in zip(low, high, strict=True)))
    weight = rows[inside]
    sizes = weight.shape[2:]
    kind: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    front = [stride[a] * centre[a] - low[a] for a in range(rank)]
    back = [(sides[a] - 1) * stride[a] + sizes[a] - front[a] - given[a] for a in range(rank)]
    if any(f < 0 for f in front):
        return None
    back = [max(b, 0) for b in back]
    single = all(s == 1 for s in (*sizes, *stride)) and weight.shape[0] == weight.shape[1] and not bool(shift.any())
    if single and any(front) and torch.equal(weight.flatten(1), torch.eye(len(weight), dtype=weight.dtype)):
        return [_padding(rank, [p for a in reversed(range(rank)) for p in (front[a], back[a])])]
    even = front if all(f - stride[a] < b <= f for a, (f, b) in enumerate(zip(front, back, strict=True))) else None
    bias = shift.amax((0, *range(2, shift.ndim)))
    layer = kind(
        weight.shape[1], weight.shape[0], tuple(sizes), stride=tuple(stride), padding=tuple(even or [0] * rank),
        bias=bool(bias.any()), dtype=torch.float64,
    )  # fmt: skip
    layer.weight = nn.Parameter(weight.contiguous().clone(), requires_grad=False)
    if layer.bias is not None:
        layer.bias = nn.Parameter(bias.clone(), requires_grad=False)
    if even is not None:
        return [layer]
    pads = [p for a in reversed(range(rank)) for p in (front[a], back[a])]
    return [_padding(rank, pads), layer]


def _padding(rank: int, pads: list[int]) -> nn.Module:
    kind: Any = (nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d)[rank - 1]
    return kind(tuple(pads))  # type: ignore[no-any-return]


def _box(rows: Tensor) -> tuple[list[int] | None, list[int] | None]:
    """First and last position, by axis, that any entry is taken from."""
    used = (rows.abs() > 0).any(0).any(0)
    places = used.nonzero()
    if not len(places):
        return None, None
    return places.amin(0).tolist(), places.amax(0).tolist()
