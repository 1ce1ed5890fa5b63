"""The owner's network in shells, and with weights that are made before or during each call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import canon
from canon.graph import plain
from tests.containment.disguises import chain, images


def _each(make: Callable[[Any], Any]) -> Callable[[nn.Sequential], nn.Module]:
    def change(model: nn.Sequential) -> nn.Module:
        for layer in model:
            if isinstance(layer, nn.Conv2d | nn.Linear):
                make(layer)
        return model

    return change


@torch.no_grad()
def _unit(layer: Any) -> None:
    """A weight that a spectral norm leaves as it is."""
    layer.weight.div_(torch.linalg.matrix_norm(layer.weight.flatten(1), 2))


class Scaled(nn.Module):
    """The first layer's weights are made in the forward pass, and the rest is called in one stretch."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.size = nn.Parameter(torch.linspace(0.5, 2, len(model[0].weight), dtype=torch.float64)[:, None, None, None])
        with torch.no_grad():
            model[0].weight.div_(self.size)

    def forward(self, x: Tensor) -> Tensor:
        first: Any = self.model[0]
        x = nn.functional.conv2d(x, first.weight * self.size, first.bias, first.stride, first.padding)
        result: Tensor = self.model[1:](x)
        return result


def _united(model: Any) -> Any:
    return _each(_unit)(model)


def _compiled(model: Any) -> Any:
    return torch.compile(model, backend="eager")


WRAPPED: dict[str, Callable[[Any], nn.Module]] = {
    "weight norm": _each(parametrizations.weight_norm),
    "weight norm by hooks": _each(nn.utils.weight_norm),
    "spectral norm": lambda model: _each(parametrizations.spectral_norm)(_united(model)),
    "pruned by hooks": _each(lambda layer: prune.identity(layer, "weight")),
    "compiled": _compiled,
    "data parallel": nn.DataParallel,
    "compiled, data parallel": lambda model: nn.DataParallel(_compiled(model)),
    "weights made in the forward pass": Scaled,
}


@pytest.mark.parametrize("name", WRAPPED)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_shell_hides_nothing(name: str) -> None:
    owner: Any = chain()
    inputs = images()
    if name == "spectral norm":
        _each(_unit)(owner)
    disguised: Any = canon.attack(
        owner, inputs, "nso_clique" if "norm" in name else "mix-opseq", ratio=0.3, seed=2
    ).model
    suspect = WRAPPED[name](copy.deepcopy(disguised)).eval()
    if name == "spectral norm":
        disguised = plain(suspect)
        owner = canon.recover(disguised, inputs).model  # its norms are of wider layers
    before = {key: value.clone() for key, value in suspect.state_dict().items()}
    with torch.no_grad():
        assert torch.allclose(plain(suspect)(inputs), disguised(inputs))
    assert canon.judge(suspect, inputs, reference=owner).answers.network.answer == "equal"
    assert canon.judge(suspect, inputs, layout_key=canon.register(owner, inputs)).verdict.kind == "matches"
    assert canon.locate(suspect, owner, inputs).answer == "contained"
    after = suspect.state_dict()
    assert before.keys() == after.keys(), "the suspect is not changed"
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_plain_model_is_not_copied() -> None:
    model = chain()
    assert plain(model) is model


def test_an_owner_may_be_wrapped_as_well() -> None:
    owner, inputs = chain(), images()
    wrapped = WRAPPED["weight norm"](copy.deepcopy(owner)).eval()
    key = canon.register(wrapped, inputs)
    suspect = canon.attack(wrapped, inputs, "nso_clique", ratio=0.3, seed=1).model
    assert canon.judge(suspect, inputs, layout_key=key).answers.network.answer == "equal"
    assert canon.certify(canon.recover(nn.DataParallel(suspect), inputs).model, wrapped, inputs).passed
