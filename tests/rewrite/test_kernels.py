"""Kernels that grow and are cropped: outputs stay, and attributes are those that torch itself gives such a layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

from canon.rewrite.kernels import Kernel, cropped, inner_places, resize_kernels
from tests.preservation import outputs, relative_error

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")

KEPT = "_reversed_padding_repeated_twice"
MODES = ("zeros", "reflect", "replicate", "circular")


@st.composite
def layers(draw: st.DrawFn) -> Any:
    """A convolution over images of eleven times twelve, of any size, dilation, stride, padding and mode."""
    size = draw(st.tuples(*(st.integers(1, 4),) * 2))
    dilation = draw(st.tuples(*(st.integers(1, 2),) * 2))
    padding: Any = draw(st.one_of(st.sampled_from(["same", "valid"]), st.tuples(*(st.integers(0, 3),) * 2)))
    stride = 1 if padding == "same" else draw(st.integers(1, 2))
    mode, groups = draw(st.sampled_from(MODES)), draw(st.sampled_from([1, 2, 4]))
    torch.manual_seed(draw(st.integers(0, 99)))
    options: Any = {"dilation": dilation, "stride": stride, "padding": padding, "padding_mode": mode}
    return nn.Conv2d(4, 8, size, groups=groups, **options).double().eval()


def fresh(layer: Any) -> Any:
    """What torch makes of a layer's attributes."""
    return nn.Conv2d(
        layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding, layer.dilation,
        layer.groups, padding_mode=layer.padding_mode,
    )  # fmt: skip


def image() -> Tensor:
    return torch.randn(2, 4, 11, 12, dtype=torch.float64)


@given(layers(), st.tuples(*(st.integers(0, 2),) * 2))
def test_grown_and_cropped_again(layer: Any, more: tuple[int, int]) -> None:
    x, before = image(), (layer.kernel_size, layer.padding, list(getattr(layer, KEPT)))
    expected, plain = outputs(layer, x), layer.weight.detach().clone()
    grown = nn.functional.pad(plain, (more[1], more[1], more[0], more[0]))
    layer.weight = nn.Parameter(grown)
    Kernel.of(layer).without([(-count, -count) for count in more]).settle(layer)
    assert relative_error(outputs(layer, x), expected) < 1e-12
    assert list(getattr(layer, KEPT)) == list(getattr(fresh(layer), KEPT))
    ends = Kernel.of(layer).removable(grown.flatten(0, 1).any(dim=0))
    assert bool(ends) == any(more)
    if ends:
        layer.weight = nn.Parameter(cropped(grown, ends))
        Kernel.of(layer).without(ends).settle(layer)
    assert torch.equal(layer.weight, plain)
    assert (layer.kernel_size, layer.padding, list(getattr(layer, KEPT))) == (
        before[0], (0, 0) if before[1] == "valid" else before[1], before[2],
    )  # fmt: skip


@given(layers(), st.tuples(*(st.tuples(st.integers(0, 2), st.integers(0, 2)),) * 2))
def test_what_can_go_changes_nothing(layer: Any, zeros: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """Zeros anywhere at the ends: what is removed keeps the outputs, and nothing more can be removed."""
    assume(all(sum(ends) < size for ends, size in zip(zeros, layer.kernel_size, strict=True)))
    inside = torch.zeros(layer.kernel_size, dtype=torch.bool)
    inside.flatten()[inner_places(layer.kernel_size, zeros).flatten()] = True
    layer.weight = nn.Parameter(layer.weight.detach() * inside)
    x, kernel = image(), Kernel.of(layer)
    expected, ends = outputs(layer, x), kernel.removable(inside)
    if ends:
        layer.weight = nn.Parameter(cropped(layer.weight.detach(), ends))
        kernel.without(ends).settle(layer)
        assert relative_error(outputs(layer, x), expected) < 1e-12
        assert list(getattr(layer, KEPT)) == list(getattr(fresh(layer), KEPT))
    left = layer.weight.detach().flatten(0, 1).any(dim=0)
    assert Kernel.of(layer).removable(left) == ()


def test_rings_of_a_dilated_layer() -> None:
    """Where entries stand two apart, a ring takes two of padding."""
    layer: Any = nn.Conv2d(4, 8, 3, padding=1, dilation=2)
    x, net = image(), nn.Sequential(layer).double().eval()
    expected = outputs(net, x)
    layer.weight = nn.Parameter(nn.functional.pad(layer.weight.detach(), (1,) * 4))
    resize_kernels(net, {"0.weight": 1})
    assert layer.padding == (3, 3)
    assert relative_error(outputs(net, x), expected) < 1e-12
