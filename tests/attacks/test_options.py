"""Bad input is refused before any work, and says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from canon import zoo
from canon.attacks import AttackOptions, attack, attack_with
from canon.errors import AttackError, TrainingModeError, UnsupportedModelError


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()


EXAMPLE = torch.zeros(2, 4)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"ratio": 0.0}, r"ratio must be in \(0, 1\], got 0.0"),
        ({"ratio": 1.2}, r"ratio must be in \(0, 1\]"),
        ({"ratio": float("nan")}, r"ratio must be in \(0, 1\]"),
        ({"ops": ()}, "no operation given"),
        ({"ops": ("mix-opseq", "nso_zero")}, "stands alone"),
        ({"split_position": -0.1}, "split position"),
        ({"scale_range": (0.0, 1.0)}, "scales must be positive"),
        ({"scale_range": (2.0, 1.0)}, "scales must be positive"),
        ({"sequence_length": 0}, "at least one primitive"),
        ({"zero_form": "both"}, "zero_form is"),
        ({"split_shares": "odd"}, "split_shares is"),
        ({"tiny_range": (0.0, 1e-12)}, "tiny weights must be positive"),
        ({"tiny_range": (1e-12, 1e-30)}, "tiny weights must be positive"),
        ({"clique_noise": -1.0}, r"noise of cliques must be in \[0, 1\]"),
        ({"clique_noise": float("nan")}, r"noise of cliques must be in \[0, 1\]"),
    ],
)
def test_options_are_checked(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(AttackError, match=words):
        AttackOptions(**{"ops": ("nso_zero",), **wrong})


def test_an_unknown_op_names_the_known_ones() -> None:
    with pytest.raises(
        AttackError, match=r"no attack 'nso_nil'.*nso_zero, nso_clique, nso_split, dead_range, .*, mix-opseq"
    ):
        attack(network(), EXAMPLE, ["nso_zero", "nso_nil"])


def test_a_selection_that_matches_nothing() -> None:
    with pytest.raises(AttackError, match=r"matches no free space: layer9.*Free spaces: 0"):
        attack(network(), EXAMPLE, ["nso_zero"], select=("layer9",))


def test_an_anchor_that_is_not_attacked() -> None:
    with pytest.raises(AttackError, match="anchor 'fc' is not among"):
        attack(network(), EXAMPLE, ["nso_zero"], anchor="fc")


def test_a_model_with_nothing_free() -> None:
    with pytest.raises(AttackError, match="nothing that may change"):
        attack(nn.Linear(4, 3).eval(), EXAMPLE, ["nso_zero"])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_not_finite(value: float) -> None:
    model: Any = network()
    with torch.no_grad():
        model[2].weight[1, 2] = value
    with pytest.raises(UnsupportedModelError, match=r"not finite \(at 2.weight\)"):
        attack(model, EXAMPLE, ["nso_zero"])


def test_a_model_in_training_mode() -> None:
    with pytest.raises(TrainingModeError):
        attack(network().train(), EXAMPLE, ["nso_zero"])


def test_a_model_that_would_be_too_large_is_refused_before_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("canon.attacks.pipeline.write_tensors", lambda *_: pytest.fail("tensors were written"))
    with pytest.raises(AttackError, match=r"would have [\d,]{13,} parameters, more than 1,000,000,000"):
        attack(zoo.model("vgg11_bn"), zoo.example_input("vgg11_bn"), "mix-opseq", ratio=1.0)


def test_a_sequence_without_end_is_refused_while_it_is_still_small() -> None:
    with pytest.raises(AttackError, match="more than 1,000,000 channels"):
        attack_with(network(), EXAMPLE, AttackOptions(ops=("mix-opseq",), ratio=0.5, sequence_length=10_000))


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize("name", ["mobilenet_v3_small", "regnet_y_400mf", "squeezenet1_1"])
def test_the_size_is_known_beforehand(name: str, kernels: bool) -> None:
    model, example = zoo.model(name), zoo.example_input(name)
    result = attack(model, example, ["nso_zero"], ratio=0.1, expand_kernels=kernels)
    assert result.log.parameters == sum(parameter.numel() for parameter in result.model.parameters())


def test_progress_is_told_layer_by_layer() -> None:
    told: list[tuple[int, int]] = []
    attack_with(network(), EXAMPLE, AttackOptions(ops=("nso_zero",)), lambda done, total: told.append((done, total)))
    assert told == [(1, 2), (2, 2)]
