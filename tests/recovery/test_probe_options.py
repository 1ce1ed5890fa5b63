"""Each parameter of the probe method changes what is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from canon.attacks import attack
from canon.errors import RecoveryError
from canon.recovery import ProbeOptions, recover
from canon.recovery.capture import make_probes
from tests.recovery.probing import EXAMPLE, chain, classes_of, groups, linear, residual, shapes


class TestParameters:
    """Each parameter changes what is found."""

    example = torch.zeros(1, 6)

    def noisy(self, size: float) -> nn.Module:
        """Channel 5 copies channel 1 up to noise of a relative size."""
        model = chain(6, 6, 4)
        first = linear(model, 0)
        with torch.no_grad():
            generator = torch.Generator().manual_seed(0)
            first.weight[5] = first.weight[1] * (1 + size * torch.randn(6, generator=generator))
            first.bias[5] = first.bias[1]
        return model

    def test_tau(self) -> None:
        model = self.noisy(1e-3)
        assert groups(classes_of(model, self.example, tau=1e-2)["0"]) == {(1, 5)}
        assert groups(classes_of(model, self.example, tau=1e-5)["0"]) == set()

    def test_weight_tolerance(self) -> None:
        model = self.noisy(1e-3)
        assert groups(classes_of(model, self.example, tau=1e-2, weight_tolerance=1e-5)["0"]) == set()

    def test_t_min(self) -> None:
        model = self.noisy(1e-4)
        assert groups(classes_of(model, self.example, probes=32, t_min=33)["0"]) == set()
        assert groups(classes_of(model, self.example, probes=32, t_min=4)["0"]) == {(1, 5)}

    def test_probes(self) -> None:
        model = self.noisy(1e-4)
        assert groups(classes_of(model, self.example, probes=2, t_min=4)["0"]) == set()
        assert groups(classes_of(model, self.example, probes=64, t_min=4)["0"]) == {(1, 5)}

    def test_epsilon(self) -> None:
        """A high ε leaves too few probes that count."""
        model = self.noisy(1e-4)
        assert groups(classes_of(model, self.example, epsilon=0.99)["0"]) == set()

    def test_active_ratio(self) -> None:
        model = self.noisy(1e-4)
        assert groups(classes_of(model, self.example, active_ratio=(0.99, 1.0))["0"]) == set()

    def test_gammas(self) -> None:
        """Columns that add up to a hundredth: a clique, a signal, or neither, as the gammas say."""
        model = self.noisy(0.0)
        last = linear(model, 2)
        with torch.no_grad():
            last.weight[:, 5] = -0.98 * last.weight[:, 1]
        assert groups(classes_of(model, self.example, gamma_drop=1e-4, gamma_keep=1e-3)["0"]) == {(1, 5)}
        assert groups(classes_of(model, self.example, gamma_drop=1e-4, gamma_keep=0.5)["0"]) == set()
        dropped = classes_of(model, self.example, gamma_drop=0.1, gamma_keep=0.5)["0"]
        assert groups(dropped) == {(1, 5)}
        assert 8 * float(dropped.spread[5]) == pytest.approx(0.02 / 1.98, rel=1e-4)

    def test_seed_changes_the_probes_alone(self) -> None:
        first, same, other = (make_probes(EXAMPLE, 4, 4, seed)[0][0] for seed in (0, 0, 1))
        assert torch.equal(first, same)
        assert not torch.equal(first, other)

    def test_batch_size_does_not_change_the_result(self) -> None:
        attacked = attack(residual(), EXAMPLE, ["nso_clique"], ratio=0.5).model
        results = [recover(attacked, EXAMPLE, "probe", options=ProbeOptions(batch_size=size)) for size in (3, 32)]
        assert shapes(results[0].model) == shapes(results[1].model)

    @pytest.mark.parametrize(
        "wrong", [{"probes": 0}, {"tau": 1.5}, {"epsilon": -1.0}, {"gamma_drop": 1.0}, {"active_ratio": (0.5, 0.1)}]
    )
    def test_wrong_values_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(RecoveryError):
            ProbeOptions(**wrong)
