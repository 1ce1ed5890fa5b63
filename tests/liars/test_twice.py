"""Keys that read one weight twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from canon import watermarks
from canon.watermarks import Key, Message, controls
from canon.watermarks.controls import Kind, Recorder, altered
from canon.watermarks.layers import layer_weight
from tests.liars.victims import images

FIRST, SECOND = "1", "3"


def network(seed: int, shared: bool = True) -> nn.Module:
    """Two layers of one weight, or of two that began with the same and have been trained a little."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inner = [nn.Conv2d(32, 32, 3, padding=1) for _ in range(2)]
        if shared:
            inner[1].weight = inner[0].weight
        else:
            inner[1].weight = nn.Parameter(inner[0].weight + 1e-3 * torch.randn(inner[0].weight.shape))
        model = nn.Sequential(nn.Conv2d(3, 32, 3), inner[0], nn.ReLU(), inner[1], nn.ReLU(), nn.Flatten())
    return model.eval().requires_grad_(requires_grad=False)


def opposed(faintly: float = 0.1) -> Key:
    """What a column hears in the first layer it takes back in the second, but for a whisper that all columns share."""
    model = network(0)
    key = watermarks.get("uchida17").draw_key(model, images(), message=Message.random(1, 128), layers=[FIRST, SECOND])
    columns = key.tensors["projection"][: layer_weight(model, FIRST)[0].numel()]
    whisper = torch.randn(len(columns), 1, generator=torch.Generator().manual_seed(2)) * key.message.signs()
    return replace(key, tensors={"projection": torch.cat([columns, faintly * whisper - columns])})


@pytest.mark.parametrize("shared", [True, False], ids=["one weight", "one beginning"])
def test_a_key_that_takes_back_what_it_hears_is_void(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    key, scheme = opposed(), watermarks.get("uchida17")
    strangers = [network(seed, shared) for seed in range(1, 9)]
    read = [model for model in strangers if scheme.extract(model, key).matched >= 120]
    assert 2 <= len(read) < len(strangers), "it says the message or its opposite"
    assert all(scheme.controls(model, key, 30, seed=1).void for model in strangers)
    apart = iter(range(10**6))

    def by_itself(value: Tensor, kind: Kind, source: Recorder, seed: int) -> Tensor:
        return altered(value, kind, source, next(apart))

    monkeypatch.setattr(controls, "altered", by_itself)
    found = scheme.controls(read[0], key, 30, seed=1)
    assert not found.void, "were every layer moved by itself"
    assert found.p_value(120) < 1e-6
