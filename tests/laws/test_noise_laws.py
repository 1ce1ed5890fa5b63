"""Laws of recovery where weights were disturbed after the disguise: the function stays, up to what noise there was."""

from __future__ import annotations

import copy

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
OPS = (["nso_zero"], ["nso_clique"], ["nso_split"], ["nso_split", "nso_clique", "nso_zero"])
MOST = 40
"""How many times the largest change that noise makes to outputs recovery may change them."""


def disturbed(model: nn.Module, size: float, relative: bool, seed: int) -> nn.Module:
    """A copy with Gaussian noise on every parameter."""
    model, generator = copy.deepcopy(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.parameters():
            noise = torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
            scale = tensor.clone() if relative else tensor.std() if tensor.numel() > 1 else tensor.abs()
            tensor.add_(size * scale * noise)
    return model


def effect(model: nn.Module, size: float, relative: bool) -> float:
    """What noise of this size does to outputs, at most, in a few tries."""
    expected = outputs(model, EXAMPLE)
    return max(relative_error(outputs(disturbed(model, size, relative, s), EXAMPLE), expected) for s in range(100, 104))


@given(
    networks(), st.sampled_from(OPS), st.sampled_from([1e-6, 1e-5, 1e-4, 1e-3]), st.booleans(), st.integers(0, 99)
)  # fmt: skip
def test_the_function_stays_up_to_the_noise(
    network: nn.Module, ops: list[str], size: float, relative: bool, seed: int
) -> None:
    model = randomize(network, seed)
    expected = outputs(model, EXAMPLE)
    assume(bool(expected.isfinite().all()) and float(expected.abs().max()) > 1e-6)
    try:
        attacked = attack(model, EXAMPLE, ops, ratio=0.6, seed=seed, split_shares="random").model
    except AttackError:
        assume(False)
    noisy = disturbed(attacked, size, relative, seed)
    result = recover(noisy, EXAMPLE)
    drift = relative_error(outputs(result.model, EXAMPLE), outputs(noisy, EXAMPLE))
    assert drift <= MOST * max(effect(attacked, size, relative), size), result.report.table()
