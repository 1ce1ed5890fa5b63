"""Gated MLPs: order, and the up branch's scale and sign, are free. Attacks use both, and alignment undoes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import canon

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
}
INPUTS, HIDDEN = 7, 12


class Gated(nn.Module):
    """`W_down (f(W_gate x) · W_up x)`, with the two branches apart or in one tensor."""

    def __init__(
        self, activation: str, fused: bool, bias: bool, seed: int, hidden: int = HIDDEN, inputs: int = INPUTS
    ) -> None:
        super().__init__()
        self.activation, self.fused = activation, fused
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if fused:
                self.gate_up = nn.Linear(inputs, 2 * hidden, bias)
            else:
                self.gate, self.up = nn.Linear(inputs, hidden, bias), nn.Linear(inputs, hidden, bias)
            self.down = nn.Linear(hidden, inputs, bias)
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1) if self.fused else (self.gate(x), self.up(x))
        result: Tensor = self.down(ACTIVATIONS[self.activation](gate) * up)
        return result

    @torch.no_grad()
    def disguise(self, order: Tensor, factor: Tensor) -> None:
        """Other places, and other scales and signs of the up branch, by hand."""
        for kind in ("weight", "bias"):
            if self.fused and getattr(self.gate_up, kind) is not None:
                tensor = getattr(self.gate_up, kind)
                gate, up = tensor.clone().chunk(2)
                tensor.copy_(torch.cat([gate[order], _scaled(up, factor)[order]]))
            elif not self.fused and getattr(self.gate, kind) is not None:
                gate, up = getattr(self.gate, kind), getattr(self.up, kind)
                gate.copy_(gate[order].clone())
                up.copy_(_scaled(up, factor)[order])
        self.down.weight.copy_((self.down.weight / factor)[:, order].clone())

    def up_rows(self) -> Tensor:
        return self.gate_up.weight.chunk(2)[1] if self.fused else self.up.weight

    def gate_rows(self) -> Tensor:
        return self.gate_up.weight.chunk(2)[0] if self.fused else self.gate.weight


def _scaled(rows: Tensor, factor: Tensor) -> Tensor:
    return rows * factor.view(-1, *[1] * (rows.ndim - 1))


def example() -> Tensor:
    return torch.randn(5, INPUTS, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


networks = st.builds(
    Gated, st.sampled_from(sorted(ACTIVATIONS)), fused=st.booleans(), bias=st.booleans(), seed=st.integers(0, 20)
)


@settings(max_examples=25, deadline=None)
@given(networks, st.integers(0, 1000))
def test_alignment_undoes_every_scale_and_sign(owner: Gated, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(HIDDEN, generator=generator)
    factor = torch.rand(HIDDEN, generator=generator, dtype=torch.float64) * 4 + 0.2
    factor *= torch.randint(2, (HIDDEN,), generator=generator) * 2 - 1
    suspect = Gated(owner.activation, owner.fused, owner.down.bias is not None, 0)
    suspect.load_state_dict(owner.state_dict())
    suspect.disguise(order, factor)
    with torch.no_grad():
        assert torch.allclose(suspect(example()), owner(example()), rtol=1e-12, atol=1e-12)
    aligned = canon.align(suspect, owner, example()).model
    for name, value in owner.state_dict().items():
        assert torch.allclose(aligned.state_dict()[name], value, rtol=1e-9, atol=1e-9), name
    assert canon.certify(suspect, owner, example()).passed


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_attacks_turn_signs_and_recovery_and_alignment_turn_them_back(activation: str, fused: bool) -> None:
    owner = Gated(activation, fused, bias=True, seed=3)
    attacked = canon.attack(owner, example(), ["nso_clique", "nso_zero"], ratio=0.25, seed=1).model
    assert isinstance(attacked, Gated)
    with torch.no_grad():
        assert torch.allclose(attacked(example()), owner(example()), rtol=1e-9, atol=1e-9)
        gates = functional.normalize(attacked.gate_rows(), dim=1) @ functional.normalize(owner.gate_rows(), dim=1).T
        found = gates.max(0)
        ups = (attacked.up_rows()[found.indices] / owner.up_rows()).mean(1)
    assert bool((found.values > 1 - 1e-9).all()), "every gate is still there"
    assert bool((ups < 0).any()), "signs of the up branch are turned"
    assert bool((ups > 0).any())
    assert float(ups.abs().std()) > 0.01, "and its scale is changed"
    recovered = canon.recover(attacked, example()).model
    aligned = canon.align(recovered, owner, example()).model
    for name, value in owner.state_dict().items():
        assert torch.allclose(aligned.state_dict()[name], value, rtol=1e-6, atol=1e-6), name


def test_noise_turns_no_sign_of_any_of_many_channels() -> None:
    """Which sign is taken follows from a projection, and noise puts some of so many on the other side of zero."""
    hidden, generator = 1500, torch.Generator().manual_seed(1)
    owner, suspect = (Gated("silu", fused=False, bias=False, seed=2, hidden=hidden, inputs=24) for _ in range(2))
    signs = torch.randint(2, (hidden,), generator=generator) * 2.0 - 1
    suspect.disguise(torch.randperm(hidden, generator=generator), signs)
    with torch.no_grad():
        for weight in suspect.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.add_(0.02 * float(weight.std()) * noise)
    x = torch.randn(5, 24, dtype=torch.float64, generator=generator)
    aligned = canon.align(suspect, owner, x)
    assert isinstance(aligned.model, Gated)
    gap = ((aligned.model.up_rows() - owner.up_rows()).norm(dim=1) / owner.up_rows().norm(dim=1)).detach()
    assert float(gap.max()) < 0.2, "with the other sign it would be 2"
    for known in (owner, canon.register(owner, x, robust=True)):
        assert canon.locate(suspect, known, x).coverage == 1
