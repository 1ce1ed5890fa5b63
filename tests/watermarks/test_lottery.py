"""The place of a lottery code is chosen to fit, and the p-value knows it."""

from __future__ import annotations

import torch
from torch import nn

from canon import watermarks
from canon.verify.mark import Mark, p_value
from canon.watermarks import Dataset, Message
from canon.watermarks.lottery import places


def test_keys_of_others_prove_nothing_although_they_took_the_best_place() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 14 * 14, 600), nn.ReLU(), nn.Linear(600, 600))
    images, labels = torch.randn(4, 3, 16, 16), torch.tensor([0, 1, 0, 1])
    data = Dataset("tiny", 600, images, labels, images, labels)
    scheme = watermarks.get("lottery")
    start = scheme.draw_key(model, data, message=Message.random(0, 128), seed=0)
    for position in (2, 4):  # as the ticket leaves them
        layer = model[position]
        assert isinstance(layer, nn.Linear)
        with torch.no_grad():
            layer.weight[layer.weight.abs() < layer.weight.abs().median()] = 0
    found = [
        scheme.extract(model, scheme.draw_key(model, data, message=Message.random(seed, 128), seed=seed))
        for seed in range(1, 6)
    ]
    assert all(reading.alternatives == places(start.shapes.values()) > 500_000 for reading in found)
    assert all(p_value(reading.matched, reading.total) < 1e-4 for reading in found)
    assert all(Mark.of(reading, "recovered", ()).p_value > 1e-2 for reading in found)
