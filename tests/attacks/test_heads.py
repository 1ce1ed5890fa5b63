"""Turned heads compute the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import canon
from canon.errors import AttackError
from canon.graph.heads import attention_layers
from canon_benchmarks.families import FAMILIES, build
from tests.graph.test_heads import WIDTH, Written
from tests.preservation import assert_same_function, outputs, randomize


@pytest.mark.parametrize("change", ["", "norms", "bias by head"])
@pytest.mark.parametrize("seed", range(3))
def test_the_function_stays(change: str, seed: int) -> None:
    model = randomize(nn.Sequential(nn.Linear(5, WIDTH), Written(change), nn.Linear(WIDTH, 4)))
    example = torch.randn(2, 6, 5, dtype=torch.float64)
    turned = canon.attack(model, example, "turned_heads", seed=seed, permute=False, scale=False).model
    assert_same_function(turned, outputs(model, example), example, f"{change}, seed {seed}")
    old, new = dict(model.named_parameters()), dict(turned.named_parameters())
    touched = {name for one in attention_layers(model, example) for name in one.tensors}
    assert {name for name in old if not torch.equal(old[name], new[name])} == touched


@pytest.mark.parametrize("family", ["BERT", "GPT-2", "GPT-NeoX", "GPT-J", "Qwen2", "T5", "ViT"])
def test_families(family: str) -> None:
    model, example = build(FAMILIES[family])
    model = randomize(model)
    example = tuple(x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in example)
    turned = canon.attack(model, example, "turned_heads", permute=False, scale=False).model
    assert_same_function(turned, outputs(model, example), example, family)


def test_a_model_without_attention_is_refused() -> None:
    plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    with pytest.raises(AttackError, match="no place for 'turned_heads'"):
        canon.attack(plain, torch.randn(2, 3), "turned_heads")
