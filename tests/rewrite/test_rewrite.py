"""Rewriting: exact arithmetic, ordinary models, untouched arguments."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from canon.graph import trace
from canon.graph.sizes import update_sizes
from canon.rewrite import SpaceRewrite, replace_tensors, rewrite
from canon.rewrite.axes import apart, side_by_side
from canon.rewrite.weights import rescale_norm
from canon.transforms import ChannelTransform
from tests.networks import Net, conv, head
from tests.preservation import assert_sizes_agree, outputs, randomize, relative_error

EXAMPLE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def network() -> nn.Module:
    return randomize(
        Net(lambda net, x: head(net, F.relu(net.n(net.a(x)))), a=conv(3, 6), n=nn.BatchNorm2d(6), fc=nn.Linear(6, 4))
    )


def test_the_result_shares_nothing_with_the_model() -> None:
    model = network()
    changed = rewrite(model, trace(model, EXAMPLE), {})
    pairs = zip(model.state_dict().values(), changed.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) and a.data_ptr() != b.data_ptr() for a, b in pairs)
    assert changed is not model


def test_tied_tensors_stay_tied_and_frozen_ones_frozen() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    changed = replace_tensors(model, {"0.weight": torch.ones(3, 3)})
    first, second = changed.get_submodule("0"), changed.get_submodule("1")
    assert isinstance(first, nn.Linear)
    assert isinstance(second, nn.Linear)
    assert first.weight is second.weight
    assert torch.equal(second.weight, torch.ones(3, 3))
    assert not first.bias.requires_grad


def test_a_permutation_moves_half_precision_weights_without_a_change() -> None:
    model = network().to(torch.bfloat16)
    graph = trace(model, EXAMPLE.bfloat16())
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    changed = rewrite(model, graph, {graph.free[0].id: SpaceRewrite.permutation(order)})
    before, after = model.state_dict(), changed.state_dict()
    assert torch.equal(after["a.weight"], before["a.weight"][order])
    assert torch.equal(after["n.running_var"], before["n.running_var"][order])
    assert torch.equal(after["fc.weight"], before["fc.weight"][:, order])


def test_a_norm_hides_any_scale_exactly_even_beside_its_epsilon() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias, mean, x = (torch.randn(5, generator=generator, dtype=torch.float64) for _ in range(4))
    var = torch.rand(5, generator=generator, dtype=torch.float64) * 1e-4
    inner = torch.tensor([1e-3, 0.1, 1.0, 10.0, 1e3], dtype=torch.float64)
    outer = torch.tensor([2.0, 0.5, 1.0, 3.0, 0.1], dtype=torch.float64)
    new_weight, new_bias, new_mean, new_var = rescale_norm(weight, bias, mean, var, 1e-5, inner, outer)
    expected = outer * (weight * (x - mean) / torch.sqrt(var + 1e-5) + bias)
    got = new_weight * (inner * x - new_mean) / torch.sqrt(new_var + 1e-5) + new_bias
    assert torch.allclose(got, expected, rtol=1e-12, atol=0)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 99))
def test_grouped_weights_follow_the_dense_matrix(groups: int, size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    blocks = [ChannelTransform.permutation(torch.randperm(size, generator=generator)) for _ in range(groups)]
    transform = ChannelTransform.block_sum(blocks)
    weight = torch.randn(groups * 2, size, 3, 3, generator=generator, dtype=torch.float64)
    result = apart(transform.apply(side_by_side(weight.flatten(2), groups), 1), groups).view_as(weight)
    for group in range(groups):
        rows = slice(group * 2, group * 2 + 2)
        dense = transform.dense()[group * size : (group + 1) * size, group * size : (group + 1) * size]
        assert torch.allclose(result[rows], torch.einsum("oihw,ij->ojhw", weight[rows], dense))


@pytest.mark.parametrize(
    ("layer", "tensors", "expected"),
    [
        (nn.Linear(4, 3), {"weight": (5, 6)}, {"in_features": 6, "out_features": 5}),
        (nn.Conv2d(4, 6, 1, groups=2), {"weight": (8, 3, 1, 1)}, {"in_channels": 6, "out_channels": 8, "groups": 2}),
        (nn.Conv2d(4, 8, 1, groups=4), {"weight": (6, 1, 1, 1)}, {"in_channels": 3, "out_channels": 6, "groups": 3}),
        (nn.ConvTranspose2d(4, 3, 1), {"weight": (5, 2, 1, 1)}, {"in_channels": 5, "out_channels": 2}),
        (
            nn.ConvTranspose2d(4, 4, 1, groups=4),
            {"weight": (5, 1, 1, 1)},
            {"in_channels": 5, "out_channels": 5, "groups": 5},
        ),
        (nn.BatchNorm2d(4), {"weight": (6,), "running_mean": (6,)}, {"num_features": 6}),
        (nn.BatchNorm2d(4, affine=False), {"running_mean": (6,)}, {"num_features": 6}),
        (nn.GroupNorm(4, 4), {"weight": (6,)}, {"num_groups": 6, "num_channels": 6}),
        (nn.PReLU(4), {"weight": (6,)}, {"num_parameters": 6}),
    ],
)
def test_attributes_follow_tensors(
    layer: nn.Module, tensors: dict[str, tuple[int, ...]], expected: dict[str, int]
) -> None:
    for name, shape in tensors.items():
        old = getattr(layer, name)
        setattr(layer, name, nn.Parameter(torch.zeros(shape)) if isinstance(old, nn.Parameter) else torch.zeros(shape))
    update_sizes(layer)
    assert {name: getattr(layer, name) for name in expected} == expected


def test_rewrites_of_one_model_compose() -> None:
    model = network()
    expected = outputs(model, EXAMPLE)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        graph = trace(model, EXAMPLE)
        space = graph.free[0]
        source = torch.cat([torch.randperm(space.width, generator=generator), torch.tensor([0])])
        share = torch.where(source == 0, 0.5, 1.0)
        model = rewrite(model, graph, {space.id: SpaceRewrite.expansion(source, share, space.width)})
        assert_sizes_agree(model)
    assert relative_error(outputs(model, EXAMPLE), expected) < 1e-12
