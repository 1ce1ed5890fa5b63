"""Norms folded into layers and put back: the function stays, and what cannot be folded is left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor, nn

from canon.errors import UnsupportedModelError
from canon.graph import trace
from canon.graph.tensors import tensor_names
from canon.rewrite import FoldableNorm, fold_norms, restore_norms
from canon.verify import Architecture
from canon_benchmarks.subjects import subject
from tests.networks import Net, conv
from tests.preservation import assert_same_function, outputs, randomize
from tests.strategies import networks

EXAMPLE = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
NORM = nn.BatchNorm2d


def build(function: Callable[[Any, Tensor], Any], **layers: nn.Module) -> nn.Module:
    return randomize(Net(function, **layers))


def architecture(model: nn.Module, example: Tensor) -> Architecture:
    return Architecture.of(trace(model, example), tensor_names(model)[0])


@pytest.mark.parametrize(
    ("name", "size", "folded", "left"),
    [
        ("resnet18", 32, 20, 0),
        ("efficientnet_b0", 32, 49, 0),
        ("densenet121", 32, 59, 62),  # in front of an activation, and behind concatenations
        ("inception_v3", 75, 94, 0),
    ],
)
def test_the_papers_models_keep_their_function(name: str, size: int, folded: int, left: int) -> None:
    model = subject(name).double()
    example = torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = outputs(model, example)
    found = fold_norms(model, example)
    assert len(found.norms) == folded
    assert sum(isinstance(module, nn.BatchNorm2d) for module in found.model.modules()) == left
    assert_same_function(found.model, expected, example, "folding")
    restored = restore_norms(found.model, found.norms)
    assert_same_function(restored, expected, example, "putting norms back")
    assert architecture(restored, example) == architecture(model, example)


FOLDED: dict[str, Callable[[], nn.Module]] = {
    "without bias": lambda: build(lambda n, x: n.norm(n.a(x)), a=conv(3, 4, bias=False), norm=NORM(4)),
    "with bias": lambda: build(lambda n, x: F.relu(n.norm(n.a(x))), a=conv(3, 4), norm=NORM(4)),
    "without affine part": lambda: build(lambda n, x: n.norm(n.a(x)), a=conv(3, 4), norm=NORM(4, affine=False)),
    "depthwise with a multiplier": lambda: build(
        lambda n, x: n.norm(n.a(F.silu(n.first(x)))),
        first=conv(3, 4), a=nn.Conv2d(4, 8, 3, groups=4), norm=NORM(8),
    ),
    "transposed": lambda: build(lambda n, x: n.norm(n.a(x)), a=nn.ConvTranspose2d(3, 5, 3), norm=NORM(5)),
    "linear": lambda: build(
        lambda n, x: n.norm(n.a(x.flatten(1))), a=nn.Linear(75, 6), norm=nn.BatchNorm1d(6)
    ),
    "grouped": lambda: build(
        lambda n, x: n.norm(n.a(n.first(x))), first=conv(3, 4), a=conv(4, 6, groups=2), norm=NORM(6)
    ),
    "cut behind the norm": lambda: build(
        lambda n, x: torch.cat([F.relu(p) * k for k, p in enumerate(n.norm(n.a(x)).chunk(2, 1), 1)], 1),
        a=conv(3, 6), norm=NORM(6),
    ),
    "in a row": lambda: build(lambda n, x: n.norm(nn.Identity()(n.a(x))), a=conv(3, 4), norm=NORM(4)),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDED)
def test_norms_right_behind_a_layer_are_folded(name: str) -> None:
    model = FOLDED[name]()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    found = fold_norms(model, EXAMPLE)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items()), "the model changed"
    assert [(pair.layer, pair.norm) for pair in found.norms] == [("a", "norm")]
    assert isinstance(found.model.get_submodule("norm"), nn.Identity)
    assert_same_function(found.model, outputs(model, EXAMPLE), EXAMPLE, "folding")


def shared() -> nn.Module:
    layer = conv(3, 3)
    return build(lambda n, x: n.norm(n.a(n.b(x))), a=layer, b=layer, norm=NORM(3))


LEFT: dict[str, Callable[[], nn.Module]] = {
    "another reader": lambda: build(lambda n, x: n.norm(y := n.a(x)) + y, a=conv(3, 4), norm=NORM(4)),
    "read by what is unknown": lambda: build(
        lambda n, x: n.norm(y := n.a(x)) + torch.sort(y, 1)[0], a=conv(3, 4), norm=NORM(4)
    ),
    "also an output": lambda: build(lambda n, x: (n.norm(y := n.a(x)), y), a=conv(3, 4), norm=NORM(4)),
    "a layer called twice": lambda: build(lambda n, x: n.norm(n.a(x)) + n.a(2 * x), a=conv(3, 4), norm=NORM(4)),
    "a layer with two names": shared,
    "a norm called twice": lambda: build(
        lambda n, x: n.norm(n.a(x)) + n.norm(n.b(x)), a=conv(3, 4), b=conv(3, 4), norm=NORM(4)
    ),
    "behind an activation": lambda: build(lambda n, x: n.norm(F.relu(n.a(x))), a=conv(3, 4), norm=NORM(4)),
    "behind a maximum": lambda: build(lambda n, x: n.norm(F.max_pool2d(n.a(x), 2)), a=conv(3, 4), norm=NORM(4)),
    "behind a concatenation": lambda: build(
        lambda n, x: n.norm(torch.cat([n.a(x), n.b(x)], 1)), a=conv(3, 4), b=conv(3, 2), norm=NORM(6)
    ),
    "as a function": lambda: build(
        lambda n, x: F.batch_norm(n.a(x), n.norm.running_mean, n.norm.running_var, n.norm.weight, n.norm.bias),
        a=conv(3, 4), norm=NORM(4),
    ),
    "flattened first": lambda: build(
        lambda n, x: n.norm(n.a(x).flatten(1)), a=nn.Conv2d(3, 4, 5), norm=nn.BatchNorm1d(4)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_folded_is_left_alone(name: str) -> None:
    model = LEFT[name]()
    found = fold_norms(model, EXAMPLE)
    assert_same_function(found.model, outputs(model, EXAMPLE), EXAMPLE, "folding")
    if name != "flattened first":  # with one position per channel that is still right behind the layer
        assert found.norms == ()
        assert found.model.state_dict().keys() == model.state_dict().keys()


@settings(max_examples=40)
@given(networks())
def test_random_networks_keep_their_function(network: nn.Module) -> None:
    model = randomize(network)
    expected = outputs(model, EXAMPLE)
    found = fold_norms(model, EXAMPLE)
    assert_same_function(found.model, expected, EXAMPLE, "folding")
    affine = [pair for pair in found.norms if pair.affine]
    assert_same_function(restore_norms(found.model, affine), expected, EXAMPLE, "putting norms back")


def test_norms_are_put_back_where_a_tool_has_removed_them_altogether() -> None:
    model = FOLDED["without bias"]()
    pair = fold_norms(model, EXAMPLE).norms[0]
    bare = randomize(Net(lambda n, x: n.a(x), a=conv(3, 4)))
    restored = restore_norms(bare, [pair])
    assert_same_function(restored, outputs(bare, EXAMPLE), EXAMPLE, "putting norms back")
    assert architecture(restored, EXAMPLE) == architecture(model, EXAMPLE)


@pytest.mark.parametrize(
    ("layer", "norm", "words"),
    [
        ("b", "norm", "not called once"),
        ("a", "head", "another layer stands"),
        ("a", 'x"), __import__("os").abort(), ("', "characters other than"),
        ("a", "norm.", "characters other than"),
    ],
)
def test_norms_that_cannot_be_put_back_are_an_error(layer: str, norm: str, words: str) -> None:
    model = build(lambda n, x: n.head(n.a(x).mean((2, 3))), a=conv(3, 4), head=nn.Linear(4, 2))
    with pytest.raises(UnsupportedModelError, match=words):
        restore_norms(model, [FoldableNorm(norm, layer, bias=False, affine=True)])


def test_norms_go_back_only_into_what_can_be_traced() -> None:
    def branching(net: Any, x: Tensor) -> Tensor:
        y: Tensor = net.a(x)
        return y if len(y) > 1 else -y

    model = build(branching, a=conv(3, 4))
    with pytest.raises(UnsupportedModelError, match=r"torch\.fx cannot trace"):
        restore_norms(model, [FoldableNorm("norm", "a", bias=False, affine=True)])
