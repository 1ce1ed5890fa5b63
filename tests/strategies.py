"""Hypothesis strategies: transforms of every kind, and random small networks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from canon.transforms import ChannelTransform

widths = st.integers(min_value=1, max_value=6)
numbers = st.floats(min_value=-4, max_value=4, allow_nan=False)
scales = st.floats(min_value=0.25, max_value=4)


@st.composite
def bijections(draw: st.DrawFn, width: int | None = None) -> ChannelTransform:
    """A permutation after a scaling, of either sign."""
    width = draw(widths) if width is None else width
    order = draw(st.permutations(range(width)))
    scale = [draw(scales) * draw(st.sampled_from([1, -1])) for _ in range(width)]
    return ChannelTransform.scaling(scale) @ ChannelTransform.permutation(order)


@st.composite
def transforms(draw: st.DrawFn, before: int | None = None) -> ChannelTransform:
    """A transform of any kind."""
    before = draw(widths) if before is None else before
    kind = draw(st.sampled_from(["identity", "bijection", "selection", "merge", "expansion", "entries"]))
    after = draw(widths)
    if kind == "identity":
        return ChannelTransform.identity(before)
    if kind == "bijection":
        return draw(bijections(before))
    if kind == "selection":
        keep = draw(st.lists(st.integers(0, before - 1), min_size=1, max_size=before, unique=True))
        return ChannelTransform.selection(keep, before)
    if kind == "merge":
        into = draw(st.lists(st.integers(-1, after - 1), min_size=before, max_size=before))
        factor = draw(st.lists(numbers, min_size=before, max_size=before))
        return ChannelTransform.merge(into, torch.tensor(factor), after)
    if kind == "expansion":
        source = draw(st.lists(st.integers(0, before - 1), min_size=1, max_size=8))
        share = draw(st.lists(numbers, min_size=len(source), max_size=len(source)))
        return ChannelTransform.expansion(source, torch.tensor(share), before)
    entries = draw(st.lists(st.tuples(st.integers(0, before - 1), st.integers(0, after - 1), numbers), max_size=10))
    rows, columns, values = (list(part) for part in zip(*entries, strict=True)) if entries else ([], [], [])
    return ChannelTransform.of(
        before,
        after,
        torch.tensor(rows, dtype=torch.int64),
        torch.tensor(columns, dtype=torch.int64),
        torch.tensor(values, dtype=torch.float64),
    )


class Recipe(nn.Module):
    """A network made of steps over a pool of values; every step adds one value of its own width."""

    def __init__(self, steps: list[tuple[str, tuple[int, ...]]], layers: list[nn.Module], classes: int) -> None:
        super().__init__()
        self.steps = steps
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(classes, 3)

    def forward(self, x: Tensor) -> Any:
        values = [x]
        for (kind, operands), layer in zip(self.steps, self.layers, strict=True):
            given = [values[k] for k in operands]
            values.append(_JOINS[kind](*given) if kind in _JOINS else layer(*given))
        return self.head(values[-1].mean((2, 3)))


_JOINS: dict[str, Any] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "gate": lambda a, b: a * torch.sigmoid(b.mean((2, 3), keepdim=True)),
    "cat": lambda *parts: torch.cat(parts, 1),
    "swap": lambda a: a.transpose(2, 3),
    "glu": lambda a: F.glu(a, 1),
    "iadd": lambda a, b: a.clone().add_(b),
    "number": lambda a: 0.5 - a * -2,
}
_LAYERS: dict[str, Any] = {
    "relu": lambda width: nn.ReLU(),
    "silu": lambda width: nn.SiLU(),
    "prelu": nn.PReLU,
    "norm": nn.BatchNorm2d,
    "plain norm": lambda width: nn.BatchNorm2d(width, affine=False),
    "instance norm": lambda width: nn.InstanceNorm2d(width, affine=True),
    "depthwise": lambda width: nn.Conv2d(width, width, 3, padding=1, groups=width),
    "layer norm": lambda width: nn.GroupNorm(1, width),
    "max pool": lambda width: nn.MaxPool2d(3, 1, 1),
    "avg pool": lambda width: nn.AvgPool2d(3, 1, 1),
}


@st.composite
def networks(draw: st.DrawFn) -> nn.Module:
    """A random network of convolutions, norms, activations, sums, gates, cats and shared layers."""
    width = [3]
    steps: list[tuple[str, tuple[int, ...]]] = []
    layers: list[nn.Module] = []

    def step(kind: str, operands: tuple[int, ...], layer: nn.Module, out: int) -> None:
        steps.append((kind, operands))
        layers.append(layer)
        width.append(out)

    step("conv", (0,), nn.Conv2d(3, 4, 3, padding=1), 4)
    for _ in range(draw(st.integers(2, 9))):
        last = len(width) - 1
        kind = draw(st.sampled_from([*_LAYERS, *_JOINS, "conv", "grouped", "again"]))
        alike = [k for k in range(1, last + 1) if width[k] == width[last]]
        if kind in ("add", "sub", "gate", "iadd"):
            step(kind, (last, draw(st.sampled_from(alike))), nn.Identity(), width[last])
        elif kind == "cat":
            other = draw(st.integers(1, last))
            if width[last] + width[other] <= 16:
                step(kind, (last, other), nn.Identity(), width[last] + width[other])
        elif kind == "glu" and width[last] % 2 == 0:
            step(kind, (last,), nn.Identity(), width[last] // 2)
        elif kind in ("swap", "number"):
            step(kind, (last,), nn.Identity(), width[last])
        elif kind == "grouped" and width[last] % 2 == 0 and width[last] > 2:
            step(kind, (last,), nn.Conv2d(width[last], 6, 1, groups=2), 6)
        elif kind == "again":
            fitting = [k for k, (_, o) in enumerate(steps) if k and len(o) == 1 and width[o[0]] == width[last]]
            if fitting:
                k = draw(st.sampled_from(fitting))
                step(steps[k][0], (last,), layers[k], width[k + 1])
        elif kind in _LAYERS:
            step(kind, (last,), _LAYERS[kind](width[last]), width[last])
        else:
            out = draw(st.sampled_from([2, 4, 6]))
            step("conv", (last,), nn.Conv2d(width[last], out, draw(st.sampled_from([1, 3])), padding="same"), out)
    return Recipe(steps, layers, width[-1])
