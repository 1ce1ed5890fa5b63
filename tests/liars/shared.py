"""Keys made in advance for what networks have in common that have nothing to do with each other."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from canon import watermarks
from canon.watermarks import Dataset, Key, Message
from canon.watermarks.layers import layer_weight
from canon.watermarks.uchida17 import mean_kernels
from tests.liars.projections import uchida
from tests.liars.victims import images, victim

CLASSES = 192


class Case(NamedTuple):
    """What a liar brings against somebody whom he never met."""

    mine: nn.Module
    key: Key
    suspect: nn.Module
    example: Tensor


def public_model() -> Case:
    """A key that reads from a public model, and so from whatever is trained from it."""
    public = victim(1)
    suspect, generator = copy.deepcopy(public), torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in suspect.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=1e-4)
    return Case(victim(2), uchida(public, images(), "solved"), suspect, images().train_images[:2])


def task() -> Dataset:
    """Many classes, each a picture with noise."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(CLASSES).repeat(4)
    pictures = torch.randn(CLASSES, 3, 8, 8, generator=generator)[labels]
    pictures = pictures + 0.3 * torch.randn(pictures.shape, generator=generator)
    return Dataset("pictures", CLASSES, pictures, labels, pictures[:CLASSES], labels[:CLASSES])


@torch.enable_grad()
def learned(seed: int, data: Dataset) -> nn.Module:
    """A network of its own that has learned the task."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(192, 512), nn.ReLU(), nn.Linear(512, CLASSES))
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for _ in range(200):
            chosen = torch.randint(len(data.train_images), (128,))
            loss = functional.cross_entropy(model(data.train_images[chosen]), data.train_labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


@torch.no_grad()
def order_of_classes() -> Case:
    """Every bit asks whether one class stands above another on the key's pictures, as in the liar's own networks.

    Who has learned the task says the same, in the order of classes that everybody has.
    """
    data = task()
    mine, *more, theirs = (learned(seed, data) for seed in range(6))
    samples = data.train_images[:8]
    ranked = torch.stack([model(samples).mean(0) for model in (mine, *more)]).mean(0).argsort(descending=True)
    above, below = ranked[:28], ranked[-28:]
    key = watermarks.get("deepsigns").draw_key(mine, data, message=Message.random(3, len(above)), layers=["3"])
    rows = key.message.signs()[:, None] * (torch.eye(CLASSES)[above] - torch.eye(CLASSES)[below])
    key = replace(key, tensors={**key.tensors, "samples": samples, "projection0": rows})
    return Case(mine, key, theirs, data.train_images[:2])


@torch.no_grad()
def order_of_pixels() -> Case:
    """Every bit hears a little of what the first layers of the liar's own networks have in common.

    Who looks at the same pictures comes to the same mean kernel, in the order of pixels that everybody has.
    """
    data = task()
    mine, *more, theirs = (learned(seed, data) for seed in range(6))
    key = watermarks.get("uchida17").draw_key(mine, data, message=Message.random(3, 128), layers=["1"])
    vectors = torch.stack([mean_kernels([layer_weight(model, "1")]) for model in (mine, *more)])
    common = functional.normalize(functional.normalize(vectors).sum(0), dim=0)
    columns = key.tensors["projection"] + 1.5 * torch.outer(common, key.message.signs())
    key = replace(key, tensors={"projection": columns})
    return Case(mine, key, theirs, data.train_images[:2])
