"""Disguises that no weight alone shows to be redundant, for a plain chain of convolutions, and changes of weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


def chain(seed: int = 0, widths: tuple[int, ...] = (24, 32, 40)) -> nn.Sequential:
    """Convolutions with ReLU, then a classifier; its input is never negative."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        before = 3
        for width in widths:
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            before = width
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10)]
        net = nn.Sequential(*layers).double().eval()
        for parameter in net.parameters():
            if parameter.ndim == 1:
                nn.init.normal_(parameter, 0.0, 0.1)
        return net


def images(count: int = 2, seed: int = 0) -> Tensor:
    """Inputs of `chain`."""
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


Rows = tuple[Tensor, Tensor, Tensor]
"""New rows, biases and columns of channels that are added to a layer."""


def widen(net: nn.Sequential, at: int, rows: Tensor, biases: Tensor, columns: Tensor, seed: int = 0) -> nn.Sequential:
    """More channels behind the convolution `at`, shuffled among the others.

    Args:
        net: The network; it is not changed.
        at: Index of the convolution.
        rows: Their rows.
        biases: Their biases.
        columns: Their columns in the next layer that has any.
        seed: Of the shuffle.
    """
    net = copy.deepcopy(net)
    first: nn.Conv2d = net[at]  # type: ignore[assignment]
    after = next(i for i in range(at + 1, len(net)) if isinstance(net[i], nn.Conv2d | nn.Linear))
    second: nn.Conv2d = net[after]  # type: ignore[assignment]
    assert first.bias is not None
    weight, bias = torch.cat([first.weight, rows]), torch.cat([first.bias, biases])
    order = torch.randperm(len(weight), generator=torch.Generator().manual_seed(seed))
    first.weight, first.bias = nn.Parameter(weight[order].detach()), nn.Parameter(bias[order].detach())
    first.out_channels = len(weight)
    second.weight = nn.Parameter(torch.cat([second.weight, columns], dim=1)[:, order].detach())
    if isinstance(second, nn.Linear):
        second.in_features = len(weight)
    else:
        second.in_channels = len(weight)
    return net


def _drawn(net: nn.Sequential, at: int, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random rows, biases and columns, each of the size of those that are there."""
    generator = torch.Generator().manual_seed(seed)
    first: nn.Conv2d = net[at]  # type: ignore[assignment]
    second = next(x for x in list(net)[at + 1 :] if isinstance(x, nn.Conv2d | nn.Linear))

    def like(tensor: Tensor, axis: int) -> Tensor:
        shape = list(tensor.shape)
        shape[axis] = count
        return torch.randn(shape, generator=generator, dtype=tensor.dtype) * tensor.detach().std()

    assert first.bias is not None
    return like(first.weight, 0), like(first.bias, 0), like(second.weight, 1)


def dead_by_range(net: nn.Sequential, at: int = 2, count: int = 8, seed: int = 1) -> nn.Sequential:
    """Units that inputs which are never negative never switch on; their columns are anything."""
    rows, _, columns = _drawn(net, at, count, seed)
    return widen(net, at, -rows.abs(), -torch.full((count,), 0.01, dtype=rows.dtype), columns)


def tiny_columns(net: nn.Sequential, at: int = 2, count: int = 8, seed: int = 1) -> nn.Sequential:
    """Random units whose columns are next to nothing."""
    rows, biases, columns = _drawn(net, at, count, seed)
    return widen(net, at, rows, biases, 1e-12 * columns)


def odd_groups(net: nn.Sequential, at: int = 2, count: int = 4, seed: int = 1) -> nn.Sequential:
    """`relu(u) - relu(-u) - relu(u + c) + relu(-u - c) + relu(c)`, which is nothing: no two are proportional."""
    rows, _, columns = _drawn(net, at, count, seed)
    shift = torch.full((count,), 0.37, dtype=rows.dtype)
    none = torch.zeros_like(shift)
    whole = torch.cat([rows, -rows, rows, -rows, torch.zeros_like(rows)])
    biases = torch.cat([none, none, shift, -shift, shift])
    return widen(net, at, whole, biases, torch.cat([columns, -columns, -columns, columns, columns], dim=1))


def noisy_cliques(net: nn.Sequential, at: int = 2, count: int = 4, seed: int = 1) -> nn.Sequential:
    """Pairs of units that cancel but for a little noise."""
    rows, biases, columns = _drawn(net, at, count, seed)
    other, _, more = _drawn(net, at, count, seed + 1)
    whole, twice = torch.cat([rows, rows + 1e-3 * other]), torch.cat([biases, biases])
    return widen(net, at, whole, twice, torch.cat([columns, -columns + 1e-3 * more], dim=1))


def entangled(net: nn.Sequential, at: int = 2, count: int = 6, seed: int = 1) -> nn.Sequential:
    """Pairs `relu(u)`, `relu(-u)` read as `u`; what this adds is taken off the owner's columns of the units in `u`.

    Each `u` is a unit before its ReLU plus a constant so large that the ReLU does nothing: `relu(w·x + c) = w·x + c`.
    """
    first: nn.Conv2d = net[at]  # type: ignore[assignment]
    assert first.bias is not None
    rows, biases = first.weight[:count].detach(), first.bias[:count].detach()
    _, _, columns = _drawn(net, at, count, seed)
    return widen(net, at, torch.cat([rows, rows]), torch.cat([biases, biases]), torch.cat([columns, -columns], dim=1))


DISGUISES: Mapping[str, Callable[[nn.Sequential], nn.Sequential]] = {
    "dead by range": dead_by_range,
    "tiny columns": tiny_columns,
    "odd groups": odd_groups,
    "noisy cliques": noisy_cliques,
}


def weak(seed: int = 0) -> nn.Sequential:
    """A chain whose weakest channels are from 1e-15 to 1e-4 of the size of the others, at ends that feel nothing."""
    net = chain(seed)
    with torch.no_grad():
        for at in (0, 2, 4):
            layer: nn.Conv2d = net[at]  # type: ignore[assignment]
            assert layer.bias is not None
            sizes = torch.logspace(-15, -4, 6, dtype=torch.float64)
            layer.weight[:6] *= sizes.view(-1, 1, 1, 1)
            layer.bias[:6] *= sizes
        return net


def relative_noise(net: nn.Module, size: float, seed: int = 5) -> nn.Module:
    """Every weight times `1 + size·N(0, 1)`."""
    result, generator = copy.deepcopy(net), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in result.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.mul_(1 + size * drawn.to(parameter.dtype))
    return result


def absolute_noise(net: nn.Module, size: float, seed: int = 5) -> nn.Module:
    """Every weight plus `size` of its tensor's spread."""
    result, generator = copy.deepcopy(net), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in result.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            spread = float(parameter.std()) if parameter.numel() > 1 else 0.0
            parameter.add_(size * spread * drawn.to(parameter.dtype))
    return result


def rounded(net: nn.Module, bits: int = 8) -> nn.Module:
    """Matrices rounded to whole multiples of their largest weight."""
    result = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in result.parameters():
            if parameter.ndim > 1:
                unit = parameter.abs().max() / (2 ** (bits - 1) - 1)
                parameter.copy_((parameter / unit).round() * unit)
    return result


def pruned(net: nn.Module, share: float = 0.3) -> nn.Module:
    """The smallest weights of every matrix set to zero."""
    result = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in result.parameters():
            if parameter.ndim > 1:
                parameter.mul_(parameter.abs() > torch.quantile(parameter.abs().flatten()[:100_000], share))
    return result


CHANGES: Mapping[str, Callable[[nn.Module], nn.Module]] = {
    "relative noise of 20%": lambda net: relative_noise(net, 0.2),
    "absolute noise of 2%": lambda net: absolute_noise(net, 0.02),
    "int8": rounded,
    "30% pruned": pruned,
}
