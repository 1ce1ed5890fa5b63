"""Random networks, and disguises of them that are written by hand, without Canon's attacks.

A network is a chain of layers with everything that passes must see through: norms, strides, pooling. Each disguise
makes its second convolution wider and leaves the function as it is; tests check both.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "hardswish": nn.Hardswish, "leaky": lambda: nn.LeakyReLU(0.2),
    "softplus": nn.Softplus,
}  # fmt: skip
"""Functions whose odd part is a line."""

TURNING: dict[str, Callable[[], nn.Module]] = {"tanh": nn.Tanh, "sigmoid": nn.Sigmoid}
"""Functions that are odd but for a constant."""


@dataclass(frozen=True, eq=False)
class Plain:
    """A network `stem -> a -> norm -> f -> b -> norm -> f -> head`, of which `a` is disguised."""

    model: Any
    example: Tensor
    generator: torch.Generator

    STEM, A, NORM, B = 0, 2, 3, 5


def network(seed: int, activation: str = "relu", stem: str = "relu") -> Plain:
    """A random network in float64; what `a` reads comes out of `stem`."""
    generator = torch.Generator().manual_seed(seed)

    def pick(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    first, width, last, kernel = pick(6, 10), pick(8, 16), pick(6, 12), (1, 3, 5)[pick(0, 3)]
    make = {**ACTIVATIONS, **TURNING}[activation]
    model: Any = nn.Sequential(
        nn.Conv2d(3, first, 3, padding=1), {"relu": nn.ReLU, "relu6": nn.ReLU6, "none": nn.Identity}[stem](),
        nn.Conv2d(first, width, 3, padding=1, stride=pick(1, 3)), nn.BatchNorm2d(width), make(),
        nn.Conv2d(width, last, kernel, padding=kernel // 2, bias=bool(pick(0, 2))), nn.BatchNorm2d(last), make(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 4),
    ).double()  # fmt: skip
    for module in model:
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean = torch.randn(module.num_features, generator=generator, dtype=torch.float64) * 0.3
            module.running_var = 0.5 + torch.rand(module.num_features, generator=generator, dtype=torch.float64)
        for tensor in module.parameters():
            tensor.data = torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * (
                1.0 if tensor.ndim == 1 else tensor[0].numel() ** -0.5
            )
    example = torch.randn(2, 3, 10, 10, generator=generator, dtype=torch.float64)
    return Plain(model.eval(), example, generator)


def widened(
    plain: Plain,
    rows: Tensor,
    bias: Tensor,
    columns: Tensor,
    norm: dict[str, Tensor] | None = None,
    keep: Tensor | None = None,
) -> nn.Sequential:
    """`a` with more rows, `b` with the columns that read them, all channels in another order.

    Args:
        plain: The network.
        rows: Filters of the new channels.
        bias: Their biases.
        columns: `b`'s columns on them.
        norm: Tensors of the norm between for them; those of a norm that does nothing where they are not given.
        keep: Channels of the network that stay; all of them if None.
    """
    model: Any = copy.deepcopy(plain.model)
    a, between, b = model[Plain.A], model[Plain.NORM], model[Plain.B]
    count = rows.shape[0]
    old = torch.arange(a.out_channels) if keep is None else keep
    order = torch.randperm(old.numel() + count, generator=plain.generator)
    one, none = torch.ones(count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
    fresh = {"weight": one * (1 + between.eps) ** 0.5, "bias": none, "running_mean": none, "running_var": one}
    fresh |= norm or {}
    a.weight = nn.Parameter(torch.cat([a.weight.data[old], rows])[order])
    a.bias = nn.Parameter(torch.cat([a.bias.data[old], bias])[order])
    for name, tensor in fresh.items():
        known = getattr(between, name).data
        value = torch.cat([known[old], tensor.to(known)])[order]
        setattr(between, name, nn.Parameter(value) if name in ("weight", "bias") else value)
    b.weight = nn.Parameter(torch.cat([b.weight.data[:, old], columns], dim=1)[:, order])
    a.out_channels = b.in_channels = between.num_features = order.numel()
    return model  # type: ignore[no-any-return]


def drawn(plain: Plain, *shape: int) -> Tensor:
    """Random numbers."""
    return torch.randn(shape, generator=plain.generator, dtype=torch.float64)


def folded(plain: Plain) -> tuple[Tensor, Tensor]:
    """Filters and biases of `a` with the norm behind it taken in."""
    a: Any = plain.model[Plain.A]
    norm: Any = plain.model[Plain.NORM]
    factor = norm.weight.data / (norm.running_var + norm.eps).sqrt()
    rows = a.weight.data * factor[:, None, None, None]
    return rows, factor * (a.bias.data - norm.running_mean) + norm.bias.data
