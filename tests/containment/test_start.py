"""Networks that were trained apart from the same first weights agree as far as they are still what they were."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import canon
from canon.attacks import attack
from canon.attacks.after import parse
from canon.containment import locate
from canon.containment.location import SURE
from canon.verify import register

WIDTH = 96


def first_weights(seed: int = 0) -> nn.Sequential:
    """A network that has learned nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
        ).eval()  # fmt: skip


def learned(model: nn.Module, seed: int, size: float = 0.3) -> nn.Module:
    """A copy to which a few directions were added that many rows share, as training does."""
    generator = torch.Generator().manual_seed(seed)
    model = copy.deepcopy(model)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                rows, columns = (torch.randn(n, 3, generator=generator) for n in weight.shape)
                update = rows @ columns.T
                weight.add_(update * (size * weight.norm() / update.norm()))
    return model


def by(kind: str, owner: nn.Module, example: Tensor) -> nn.Module | canon.LayoutKey:
    """What the owner brings."""
    return owner if kind == "model" else register(owner, example, robust=True)


@pytest.mark.parametrize("kind", ["model", "robust key"])
def test_networks_that_learned_apart_are_not_taken_for_copies(kind: str) -> None:
    start, example = first_weights(), torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    owner = learned(start, 1)
    anchor = by(kind, owner, example)
    apart = locate(learned(start, 2), anchor, example)
    assert apart.answer == "not decided"
    assert "first weights" in apart.reason
    assert apart.deep == 0
    assert apart.coverage < 0.6
    assert locate(start, anchor, example).answer == "not decided"


@pytest.mark.parametrize("kind", ["model", "robust key"])
@pytest.mark.parametrize("change", ["learned a little more", "noise:relative=0.2", "round=6", "prune=0.3"])
def test_copies_are_derived_whatever_was_done_to_them(kind: str, change: str) -> None:
    start, example = first_weights(), torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    owner = learned(start, 1)
    copied = attack(owner, example, "mix-opseq", ratio=0.2).model
    more = change == "learned a little more"
    suspect = learned(copied, 3, 0.04) if more else parse(change).apply(copied, torch.Generator().manual_seed(0))
    found = locate(suspect, by(kind, owner, example), example)
    assert found.answer == "derived"
    assert found.deep >= 0.95


@pytest.mark.slow
def test_trained_networks_of_the_same_first_weights() -> None:
    """The digits, learned twice from the same first weights, and a thief's copy that was trained on."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 8 - 1
    labels = torch.tensor(digits.target)

    def train(model: nn.Module, epochs: int, rate: float, seed: int) -> nn.Module:
        model, generator = copy.deepcopy(model).train(), torch.Generator().manual_seed(seed)
        optimiser = torch.optim.AdamW(model.parameters(), rate)
        for _ in range(epochs):
            for batch in torch.randperm(len(images), generator=generator).split(64):
                optimiser.zero_grad()
                F.cross_entropy(model(images[batch]), labels[batch]).backward()
                optimiser.step()
        return model.eval()

    start, example = first_weights(), images[:2]
    owner = train(start, 15, 1e-3, 0)
    for seed in (1, 2):
        judged = canon.judge(train(start, 15, 1e-3, seed), example, reference=owner)
        assert judged.answers.network.answer == "not decided"
    thief = train(attack(owner, example, "mix-opseq", ratio=0.2).model, 2, 3e-4, 3)
    found = locate(thief, owner, example)
    assert found.answer == "derived"
    assert found.coverage >= 0.99


def trained_on(owner: nn.Module, start: nn.Module, share: float, size: float) -> nn.Module:
    """A copy that learned more of what the owner learned, and something of its own."""
    model = learned(owner, 3, size)
    with torch.no_grad():
        for mine, yours, first in zip(model.parameters(), owner.parameters(), start.parameters(), strict=True):
            mine.add_(yours - first, alpha=share)
    return model


@pytest.mark.parametrize("kind", ["model", "robust key"])
@pytest.mark.parametrize("size", [0.12, 0.06])
def test_what_little_was_learned_apart_is_seen_by_what_is_taken_back(kind: str, size: float) -> None:
    """Learned so little that rows agree to a cosine of 0.99."""
    start, example = first_weights(), torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    owner = learned(start, 1, size)
    anchor = by(kind, owner, example)
    apart = locate(learned(start, 2, size), anchor, example)
    assert apart.answer == "not decided", apart.reason
    assert "first weights" in apart.reason


@pytest.mark.parametrize("kind", ["model", "robust key"])
def test_training_on_adds_to_what_is_there(kind: str) -> None:
    start, example = first_weights(), torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    owner = learned(start, 1)
    found = locate(trained_on(owner, start, 0.5, 0.1), by(kind, owner, example), example)
    assert found.answer == "derived", found.reason
    assert found.start is not None
    assert found.start.shared > found.start.bar


@pytest.mark.parametrize("kind", ["model", "robust key"])
def test_who_computes_the_same_did_not_learn_it_apart(kind: str) -> None:
    """A few steps of training: whether they add anything cannot be seen in the weights, but outputs agree."""
    start, example = first_weights(), torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    owner = learned(start, 1)
    found = locate(learned(owner, 2, 0.01), by(kind, owner, example), example)
    assert found.answer == "derived", found.reason


@pytest.mark.parametrize("kind", ["model", "robust key"])
def test_who_kept_nearly_all_that_the_owner_learned_did_not_learn_it_apart(kind: str) -> None:
    """Outputs tell nothing, and whether the change adds to what is there cannot be seen; but it is next to nothing."""
    start, example = first_weights(), torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    owner = learned(start, 1, 1.0)
    found = locate(learned(owner, 3, 0.024), by(kind, owner, example), example)
    assert found.answer == "derived", found.reason
    assert found.start is not None
    assert found.start.shared > found.start.bar
    assert found.start.added < SURE * found.start.error
    farther = locate(learned(owner, 3, 0.05), by(kind, owner, example), example)
    assert farther.answer == "not decided", farther.reason


def test_who_learned_nearly_the_same_from_one_ancestor_is_not_taken_for_a_thief() -> None:
    """With the same images and rates, an innocent adds to an ancestor what the owner did, to a cosine of 0.95."""
    public, example = first_weights(), torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    owner = learned(public, 1, 0.1)
    innocent, thief = learned(public, 2, 0.031), learned(owner, 3, 0.01)
    with torch.no_grad():
        for ours, theirs, first in zip(innocent.parameters(), owner.parameters(), public.parameters(), strict=True):
            ours.add_(theirs - first, alpha=0.95)
    found = locate(innocent, owner, example, ancestors=(public,))
    assert 0.9 < found.ancestors[0].cosine < 0.97
    assert found.answer == "not decided", found.reason
    assert locate(thief, owner, example, ancestors=(public,)).answer == "derived"
