"""Laws of recovery on random networks: it undoes the attack, it ends, it repeats itself, and it leaves clean models."""

from __future__ import annotations

import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from canon.attacks import attack
from canon.errors import AttackError
from canon.recovery import recover
from tests.preservation import outputs, randomize, relative_error
from tests.strategies import networks

EXAMPLE = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
OPS = (["nso_zero"], ["nso_clique"], ["nso_split"], ["mix-opseq"], ["nso_split", "nso_clique", "nso_zero"])


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


def same(first: nn.Module, second: nn.Module) -> bool:
    a, b = first.state_dict(), second.state_dict()
    return list(a) == list(b) and all(torch.equal(tensor, b[name]) for name, tensor in a.items())


def near(first: nn.Module, second: nn.Module) -> bool:
    """The same but for rounding: factors are measured with sketches that every run draws anew."""
    a, b = first.state_dict(), second.state_dict()
    return list(a) == list(b) and all(torch.allclose(tensor, b[name], rtol=1e-6) for name, tensor in a.items())


@given(networks(), st.sampled_from(OPS), st.sampled_from([0.2, 0.6, 1.0]), st.integers(0, 99))
def test_an_attack_is_undone(network: nn.Module, ops: list[str], ratio: float, seed: int) -> None:
    model = randomize(network, seed)
    expected = outputs(model, EXAMPLE)
    assume(bool(expected.isfinite().all()) and float(expected.abs().max()) > 1e-6)
    clean = recover(model, EXAMPLE).model
    try:
        attacked = attack(model, EXAMPLE, ops, ratio=ratio, seed=seed, split_shares="random").model
    except AttackError:
        assume(False)
    before = {name: tensor.clone() for name, tensor in attacked.state_dict().items()}
    first, second = recover(attacked, EXAMPLE), recover(attacked, EXAMPLE)
    assert shapes(first.model) == shapes(clean), first.report.table()
    assert relative_error(outputs(first.model, EXAMPLE), expected) <= 1e-9
    assert near(first.model, second.model), "the same model gives another result"
    assert all(torch.equal(tensor, before[name]) for name, tensor in attacked.state_dict().items())
    again = recover(first.model, EXAMPLE)
    assert not again.report.changed, again.report.table()
    assert same(again.model, first.model)


@given(networks(), st.integers(0, 99))
def test_a_clean_model_stays(network: nn.Module, seed: int) -> None:
    model = randomize(network, seed)
    result = recover(model, EXAMPLE)
    assert not result.report.changed, result.report.table()
    assert same(result.model, model)
