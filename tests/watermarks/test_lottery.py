"""The ticket is found by training; the place of a code is chosen to fit, and the p-value knows it."""

from __future__ import annotations

import torch
from torch import nn

from canon import watermarks
from canon.verify.mark import Mark, p_value
from canon.watermarks import Dataset, Message, TrainOptions
from canon.watermarks.embedding import Embedding
from canon.watermarks.interface import Target
from canon.watermarks.lottery import ROUNDS, places


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


def test_a_ticket_keeps_what_training_made_large_with_the_weights_it_began_with() -> None:
    model = nn.Sequential(nn.Linear(40, 40))
    first = model[0]
    assert isinstance(first, nn.Linear)
    begun = first.weight.detach().clone()
    images, labels = torch.randn(4, 1, 5, 8), torch.tensor([0, 1, 0, 1])
    data = Dataset("tiny", 40, images, labels, images, labels)
    target = Target(model, data, ("0",), Message.random(0, 128), torch.Generator().manual_seed(0))
    grown = torch.rand(40, 40, generator=torch.Generator().manual_seed(1)) < 0.5
    left: list[int] = []

    def learn(trained: nn.Module, embedding: Embedding) -> None:
        embedding.after_step(trained)
        weight = next(trained.parameters())
        left.append(int((weight != 0).sum()))
        with torch.no_grad():
            weight.add_(grown)  # as if training had made these large
        embedding.after_step(trained)

    watermarks.get("lottery").begin(target, learn)
    kept = first.weight.detach() != 0
    assert len(left) == ROUNDS
    assert left[0] == 1600 > left[1] > left[2] > 800
    assert int(kept.sum()) == 800
    assert torch.equal(first.weight.detach()[kept], begun[kept])
    assert float(grown[kept].float().mean()) > 0.95


def test_the_code_is_in_where_inputs_are_always_zero() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 2))
    images = torch.randn(64, 1, 8, 8)
    images[..., ::2] = 0  # no gradient reaches half of the columns
    labels = (images.sum((1, 2, 3)) > 0).long()
    data = Dataset("tiny", 2, images, labels, images, labels)
    options = TrainOptions(epochs=4, batch_size=16, cooldown=1, accuracy_goal=0.5)
    marked = watermarks.get("lottery").embed(model, data, layers=("1",), options=options)
    assert watermarks.get("lottery").extract(marked.model, marked.key).similarity == 1.0
