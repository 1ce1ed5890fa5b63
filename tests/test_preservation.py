"""The checks can fail: each is shown a broken model or a broken rewriter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from canon.graph import trace
from canon.rewrite import rewrite
from tests.networks import Net, conv, head
from tests.preservation import (
    assert_same_function,
    assert_sizes_agree,
    check_preserved,
    outputs,
    randomize,
    relative_error,
)

EXAMPLE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def network() -> nn.Module:
    return randomize(
        Net(lambda net, x: head(net, F.relu(net.n(net.a(x)))), a=conv(3, 6), n=nn.BatchNorm2d(6), fc=nn.Linear(6, 4))
    )


def test_a_sound_rewriter_passes() -> None:
    assert [space.name for space in check_preserved(network(), EXAMPLE).free] == ["a"]


@pytest.mark.parametrize("tensor", ["a.bias", "n.weight", "n.running_mean", "fc.weight"])
def test_a_tensor_left_behind_is_noticed(tensor: str) -> None:
    def forgetful(model: nn.Module, *rest: Any) -> nn.Module:
        changed = rewrite(model, *rest)
        owner, _, name = tensor.rpartition(".")
        old = getattr(model.get_submodule(owner), name)
        new = getattr(changed.get_submodule(owner), name)
        if new.shape == old.shape:
            new.data.copy_(old.data)
        return changed

    with pytest.raises(AssertionError, match="permutation of a changes the outputs"):
        check_preserved(network(), EXAMPLE, rewriter=forgetful)


def test_a_small_error_is_noticed() -> None:
    model = network()
    expected = outputs(model, EXAMPLE)
    assert_same_function(model, expected, EXAMPLE, "nothing")
    with pytest.raises(AssertionError, match="a nudge changes the outputs by"):
        assert_same_function(model, expected * (1 + 1e-9), EXAMPLE, "a nudge")


def test_a_changed_argument_is_noticed() -> None:
    def careless(model: nn.Module, *rest: Any) -> nn.Module:
        changed = rewrite(model, *rest)
        next(model.buffers()).add_(1)
        return changed

    with pytest.raises(AssertionError):
        check_preserved(network(), EXAMPLE, rewriter=careless)


def test_outputs_without_content_prove_nothing() -> None:
    with pytest.raises(AssertionError, match="all zero"):
        relative_error(torch.zeros(3), torch.zeros(3))
    with pytest.raises(AssertionError, match="not finite"):
        relative_error(torch.zeros(1), torch.tensor([float("nan")]))
    with pytest.raises(AssertionError, match="outputs instead of"):
        relative_error(torch.ones(2), torch.ones(3))


@pytest.mark.parametrize(
    ("layer", "attribute"),
    [
        (nn.Linear(3, 4), "out_features"),
        (nn.Conv2d(3, 4, 1), "in_channels"),
        (nn.ConvTranspose2d(3, 4, 1), "out_channels"),
        (nn.BatchNorm2d(3), "num_features"),
        (nn.GroupNorm(3, 3), "num_channels"),
    ],
)
def test_stale_attributes_are_noticed(layer: nn.Module, attribute: str) -> None:
    assert_sizes_agree(layer)
    setattr(layer, attribute, 7)
    with pytest.raises(AssertionError, match="disagree"):
        assert_sizes_agree(layer)


def test_a_graph_that_says_too_much_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixes(net: Any, x: torch.Tensor) -> torch.Tensor:
        return head(net, net.a(x).flip(1))

    model = randomize(Net(mixes, a=conv(3, 6), fc=nn.Linear(6, 4)))
    assert trace(model, EXAMPLE).free == ()
    from canon.graph.rules import lookup, registry

    identity = lookup("identity")
    assert identity is not None
    monkeypatch.setitem(registry._RULES, "flip", identity)
    with pytest.raises(AssertionError, match="changes the outputs"):
        check_preserved(model, EXAMPLE)
