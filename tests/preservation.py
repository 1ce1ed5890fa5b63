"""Checks that a rewrite keeps a model's function, and that it gives an ordinary model.

Every check raises AssertionError; tests/test_preservation.py shows that each one can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from canon.graph import ChannelGraph, Space, trace
from canon.rewrite import SpaceRewrite, rewrite

TOLERANCE = 1e-10


def randomize(model: nn.Module, seed: int = 0) -> nn.Module:
    """Fill a model with numbers that hide nothing: no zero bias, no unit variance. Gives it in float64, evaluating."""
    generator = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if not tensor.is_floating_point():
                continue
            if name.endswith("running_var"):
                tensor.copy_(torch.rand(tensor.shape, generator=generator, dtype=torch.float64) + 0.5)
                continue
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            fan_in = max(1, tensor[0].numel()) if tensor.ndim > 1 else 4
            tensor.copy_(noise * (1.5 / fan_in) ** 0.5 + (0.8 if tensor.ndim == 1 else 0.0))
    return model


def vary_constants(model: nn.Module, generator: torch.Generator) -> None:
    """Give a fresh model numbers that hide nothing where it starts with constants: norms, biases, layer scale, heads.

    A layer scale of 1e-6 or a classifier of zeros would let any fault pass.
    """
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point() and tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all()):
                noise = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
                centred = bool((tensor == 0).all())
                tensor.copy_(noise * 0.2 - 0.1 if centred else noise * 0.6 + 0.7)
                assert not (name.endswith("running_var") and centred), "a variance of zero"


def outputs(model: nn.Module, example: Any) -> Tensor:
    """What a model gives, as one vector."""
    with torch.no_grad():
        result = model(*example) if isinstance(example, tuple) else model(example)
    flat = [result] if isinstance(result, Tensor) else list(result.values() if isinstance(result, dict) else result)
    return torch.cat([tensor.flatten() for tensor in flat])


def relative_error(got: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest output."""
    assert got.shape == expected.shape, f"{tuple(got.shape)} outputs instead of {tuple(expected.shape)}"
    assert bool(expected.isfinite().all()), "the outputs to compare with are not finite"
    assert float(expected.abs().max()) > 0, "the outputs to compare with are all zero"
    return float((got - expected).abs().max() / expected.abs().max())


def assert_same_function(changed: nn.Module, expected: Tensor, example: Any, what: str) -> None:
    """The changed model gives the expected outputs."""
    error = relative_error(outputs(changed, example), expected)
    assert error <= TOLERANCE, f"{what} changes the outputs by {error:.1e}"


def assert_sizes_agree(model: nn.Module) -> None:
    """Every layer's attributes say what its tensors are."""
    for name, module in model.named_modules():
        layer: Any = module
        where = f"sizes of '{name}' disagree with its tensors"
        if isinstance(module, nn.Linear):
            assert tuple(layer.weight.shape) == (layer.out_features, layer.in_features), where
        elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            expected = (layer.out_channels, layer.in_channels // layer.groups)
            assert tuple(layer.weight.shape[:2]) == expected, where
        elif isinstance(module, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
            assert tuple(layer.weight.shape[:2]) == (layer.in_channels, layer.out_channels // layer.groups), where
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            assert layer.running_mean is None or len(layer.running_mean) == layer.num_features, where
        elif isinstance(module, nn.GroupNorm):
            assert layer.weight is None or len(layer.weight) == layer.num_channels, where


def permutation(space: Space, generator: torch.Generator) -> SpaceRewrite:
    """A random order of the channels, group by group, and of groups that may change places."""
    size = space.width // space.groups
    groups = torch.randperm(space.groups, generator=generator) if space.trading else torch.arange(space.groups)
    blocks = [torch.randperm(size, generator=generator) + group * size for group in groups]
    return SpaceRewrite.permutation(torch.cat(blocks))


def scaling(graph: ChannelGraph, space: Space, generator: torch.Generator) -> SpaceRewrite:
    """A random scale at every tap that allows one; of either sign where that is allowed too."""
    scales: dict[int, Tensor] = {}
    for tap in graph.space_taps(space):
        if tap not in graph.fixed_taps:
            scale = torch.rand(space.width, generator=generator, dtype=torch.float64) * 1.5 + 0.5
            if tap in graph.signed_taps:
                scale *= torch.randint(2, (space.width,), generator=generator) * 2 - 1
            scales[tap] = scale
    return SpaceRewrite.scaling(space.width, scales)


def expansion(space: Space, generator: torch.Generator, extra: int = 2) -> SpaceRewrite:
    """Plant copies in every group; copies share what the consumers read."""
    size = space.width // space.groups
    sources, shares = [], []
    for group in range(space.groups):
        source = torch.cat([torch.arange(size), torch.randint(size, (extra,), generator=generator)])
        raw = torch.rand(len(source), generator=generator, dtype=torch.float64) + 0.1
        share = raw / torch.zeros(size, dtype=torch.float64).index_add(0, source, raw)[source]
        order = torch.randperm(len(source), generator=generator)
        sources.append(source[order] + group * size)
        shares.append(share[order])
    return SpaceRewrite.expansion(torch.cat(sources), torch.cat(shares), space.width)


def merge_back(planted: SpaceRewrite) -> SpaceRewrite:
    """Undo `expansion`: of every channel's copies the first remains."""
    source = planted.source
    keep = torch.zeros(planted.before, dtype=torch.int64)
    keep[source.flip(0)] = torch.arange(len(source)).flip(0)
    return SpaceRewrite.merge(keep, source, {})


Plan = Mapping[int, SpaceRewrite]


def check_preserved(
    model: nn.Module,
    example: Any,
    *,
    seed: int = 0,
    one_by_one: bool = True,
    rewriter: Callable[..., nn.Module] = rewrite,
) -> ChannelGraph:
    """Permutation, scaling, planted copies and their merge keep the function at every free space of a model.

    Args:
        model: In float64 and evaluation mode.
        example: Its input.
        seed: Of everything random.
        one_by_one: Also rewrite each space alone, so that two faults cannot hide each other; spaces that must stay
            equally wide grow together.
        rewriter: What applies a plan.
    """
    generator = torch.Generator().manual_seed(seed)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    graph = trace(model, example)
    expected = outputs(model, example)
    plans: dict[str, Plan] = {
        "permutation": {s.id: permutation(s, generator) for s in (*graph.free, *graph.rigid)},
        "scaling": {s.id: scaling(graph, s, generator) for s in (*graph.free, *graph.rigid)},
        "expansion": {s.id: expansion(s, generator) for s in graph.free},
    }
    for kind, plan in plans.items():
        alone = []
        for index in plan if one_by_one else ():
            together = (index, *graph.spaces[index].peers) if kind == "expansion" else (index,)
            alone.append({i: plan[i] for i in together})
        for part in [*alone, plan]:
            names = ", ".join(graph.spaces[index].name for index in part)
            changed = rewriter(model, graph, part)
            assert_sizes_agree(changed)
            assert_same_function(changed, expected, example, f"{kind} of {names}")
            assert type(changed) is type(model), "a rewrite gives another kind of model"
    _check_merge(model, graph, plans["expansion"], expected, example, rewriter)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), f"'{name}' of the given model was changed"
    return graph


def _check_merge(
    model: nn.Module,
    graph: ChannelGraph,
    planted: Plan,
    expected: Tensor,
    example: Any,
    rewriter: Callable[..., nn.Module],
) -> None:
    """Copies planted everywhere are found in the same spaces and merge back into the model they came from."""
    wide = rewriter(model, graph, planted)
    again = trace(wide, example)
    assert [s.name for s in again.free] == [s.name for s in graph.free], "a wider model has other free spaces"
    plan = {new.id: merge_back(planted[old.id]) for old, new in zip(graph.free, again.free, strict=True)}
    merged = rewriter(wide, again, plan)
    assert_same_function(merged, expected, example, "merge")
    for (name, old), tensor in zip(model.state_dict().items(), merged.state_dict().values(), strict=True):
        assert torch.allclose(old, tensor, rtol=1e-12, atol=1e-14), f"'{name}' comes back different from a merge"
