"""Rows without a counterpart: the owner's activations as linear images of the suspect's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import canon
from tests.containment.disguises import chain, images, relative_noise
from tests.verify.small import disguise


def linear_bottlenecks(seed: int = 0) -> nn.Sequential:
    """Convolutions with layers between them that nothing but linear layers read, through a mean."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        before = 3
        for wide, narrow in ((24, 16), (32, 20), (40, 24)):
            layers += [nn.Conv2d(before, wide, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(wide, narrow, 1), nn.AvgPool2d(3, 1, 1), nn.Conv2d(narrow, narrow, 1)]
            before = narrow
        layers += [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10)]
        return nn.Sequential(*layers).double().eval()


def mixed(net: nn.Sequential, seed: int = 1) -> nn.Sequential:
    """The same function, with the basis between the linear layers mixed."""
    copied = copy.deepcopy(net)
    result: Any = copied
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for at in (2, 7, 12):
            first, second = result[at], result[at + 2]
            drawn = torch.randn(first.out_channels, first.out_channels, generator=generator, dtype=torch.float64)
            table = torch.linalg.qr(drawn)[0]
            first.weight.copy_(torch.einsum("ij,jkab->ikab", table, first.weight))
            first.bias.copy_(table @ first.bias)
            second.weight.copy_(torch.einsum("ojab,ij->oiab", second.weight, table))
    return copied


def test_a_mixed_basis_is_seen_in_activations() -> None:
    net, inputs = linear_bottlenecks(), images()
    suspect = disguise(mixed(net), inputs)  # in another order: behind a mixed basis nothing has its place
    assert torch.allclose(suspect(inputs), net(inputs))
    found = canon.locate(suspect, net, inputs)
    assert found.answer == "derived"
    assert found.coverage < 0.3, "rows alone do not show it"
    assert "linear images" in found.reason
    assert all(span.spanned >= 0.9 * span.channels and span.residual < 1e-5 for span in found.spans)
    assert all(span.residual < 1e-3 * span.chance for span in found.spans)
    assert found.to_dict()["spans"][0]["spanned"] == found.spans[0].spanned


@pytest.mark.parametrize("seed", [4, 5])
def test_a_stranger_spans_nothing(seed: int) -> None:
    for net, other in ((linear_bottlenecks(), linear_bottlenecks(seed)), (chain(), chain(seed))):
        found = canon.locate(other, net, images())
        assert found.answer == "unrelated"
        assert found.spans
        assert not any(span.spanned for span in found.spans)


def test_a_mixed_and_changed_basis_is_not_enough() -> None:
    net = linear_bottlenecks()
    found = canon.locate(relative_noise(mixed(net), 0.2), net, images())
    assert found.answer != "contained"


def test_with_an_ancestor_activations_say_nothing() -> None:
    net = linear_bottlenecks()
    found = canon.locate(disguise(mixed(net), images()), net, images(), ancestors=(linear_bottlenecks(7),))
    assert found.answer == "not decided"
    assert "ancestor" in found.reason


def test_a_copy_needs_no_span_test() -> None:
    assert canon.locate(chain(), chain(), images()).spans == ()
