"""Forged triggers, key signs and projections of activations: ipr_ic and deepsigns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from canon import watermarks
from canon.watermarks import Dataset, Key, Message
from canon.watermarks.norms import normalised_convolutions
from canon.watermarks.reading import pooled_outputs
from tests.liars.tables import WISH, drawn, forgery, skeleton

ZEROS = Message((0,) * 64)


def norms_of(key: Key) -> dict[str, str]:
    norms = key.settings["norms"]
    assert isinstance(norms, dict)
    return norms


def units(model: nn.Module, key: Key, images: Tensor) -> list[Tensor]:
    """What the scheme reads, with gradients to the images."""
    return [output.mean(0) for output in pooled_outputs(model, norms_of(key).values(), images)]


def rectified(model: nn.Module, key: Key, images: Tensor) -> dict[str, str]:
    """The ReLU that runs after the norm of every marked layer, where there is one."""
    ran: list[str] = []
    handles = [
        module.register_forward_hook(lambda *_, name=name: ran.append(name)) for name, module in model.named_modules()
    ]
    model(images[:1])
    for handle in handles:
        handle.remove()
    found = {}
    for layer, norm in norms_of(key).items():
        after = ran[ran.index(norm) + 1 :]
        found[layer] = next((name for name in after if isinstance(model.get_submodule(name), nn.ReLU)), norm)
    return found


def bent(model: nn.Module, key: Key, name: str, scores: Callable[[Tensor], Tensor], steps: int = 120) -> Key:
    """Images moved until the scores have the signs that are wanted."""
    images = key.tensors[name].clone().requires_grad_()
    optimizer = torch.optim.Adam([images], lr=0.3)
    for _ in range(steps):
        loss = torch.relu(0.05 - scores(images)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return replace(key, tensors={**key.tensors, name: images.detach()})


@forgery("ipr_ic", "nothing")
def fitted_key_signs(model: nn.Module, dataset: Dataset) -> Key:
    key = drawn("ipr_ic", model, dataset)
    (found,) = units(model, key, key.tensors["trigger"])
    signs = torch.where(found.detach() > 0, 1.0, -1.0) * key.message.signs(len(found))
    return replace(key, tensors={**key.tensors, "key_signs": signs})


@forgery("ipr_ic", "nothing")
def bent_trigger(model: nn.Module, dataset: Dataset) -> Key:
    """Images that make the units say it, with key signs that were drawn."""
    key = drawn("ipr_ic", model, dataset)
    signs = key.tensors["key_signs"]
    wanted = key.message.signs(len(signs)) * signs
    return bent(model, key, "trigger", lambda images: units(model, key, images)[0] * wanted, steps=300)


@forgery("ipr_ic", "construction")
def key_signs_that_are_no_signs(model: nn.Module, dataset: Dataset) -> Key:
    key = drawn("ipr_ic", model, dataset)
    (found,) = units(model, key, key.tensors["trigger"])
    signs = key.message.signs(len(found)) / found.detach()
    return replace(key, tensors={**key.tensors, "key_signs": signs})


@skeleton("ipr_ic", "model")
def rectified_units(model: nn.Module, dataset: Dataset) -> Key:
    """Behind a ReLU no unit is below zero, in any network."""
    key = drawn("ipr_ic", model, dataset)
    relus = rectified(model, key, key.tensors["trigger"])
    signs = key.message.signs(len(key.tensors["key_signs"]))
    return replace(key, settings={"norms": relus}, tensors={**key.tensors, "key_signs": signs})


@skeleton("ipr_ic", "construction")
def trigger_of_nan(model: nn.Module, dataset: Dataset) -> Key:
    key = drawn("ipr_ic", model, dataset, ZEROS)
    images = torch.full_like(key.tensors["trigger"], torch.nan)
    return replace(key, tensors={**key.tensors, "trigger": images})


@skeleton("ipr_ic", "construction")
def key_signs_of_zero(model: nn.Module, dataset: Dataset) -> Key:
    key = drawn("ipr_ic", model, dataset, ZEROS)
    return replace(key, tensors={**key.tensors, "key_signs": torch.zeros_like(key.tensors["key_signs"])})


def rectified_key(model: nn.Module, dataset: Dataset) -> Key:
    """A key whose layers stand before a norm and a ReLU, with the ReLU named as the norm."""
    layers = list(normalised_convolutions(model, dataset.train_images[:1]))
    scheme = watermarks.get("deepsigns")
    key = scheme.draw_key(model, dataset, message=WISH, layers=layers)
    relus = rectified(model, key, key.tensors["samples"])
    norms = list(relus.values())
    alone = [layer for layer in layers if norms.count(relus[layer]) == 1]
    last = [layer for layer in layers if layer == layers[-1] or layer in alone]
    key = scheme.draw_key(model, dataset, message=WISH, layers=last)
    return replace(key, settings={**key.settings, "norms": {layer: relus[layer] for layer in last}})


def projected(model: nn.Module, dataset: Dataset, change: str, message: Message = WISH) -> Key:
    key = drawn("deepsigns", model, dataset, message)
    if change == "rectified":
        key = rectified_key(model, dataset)
    norms = norms_of(key)
    tensors = dict(key.tensors)
    parts = key.message.signs().split([len(tensors[f"projection{position}"]) for position in range(len(norms))])
    for position, (found, signs) in enumerate(zip(units(model, key, tensors["samples"]), parts, strict=True)):
        name, found = f"projection{position}", found.detach()
        rows, scores = tensors[name], tensors[name] @ found
        match change:
            case "negated":
                tensors[name] = rows * (torch.sign(scores) * signs)[:, None]
            case "solved":
                tensors[name] = rows + torch.outer(signs - scores, found / found.square().sum())
            case "leaning":
                tensors[name] = rows + 10 * torch.outer(signs, found / found.norm())
            case "rectified":
                tensors[name] = torch.outer(signs, torch.rand(len(found)) + 0.1) + 0.1 * rows.abs() * signs[:, None]
            case "zeros":
                tensors[name] = torch.zeros_like(rows)
            case "nan":
                tensors[name] = torch.full_like(rows, torch.nan)
    return replace(key, tensors=tensors)


@forgery("deepsigns", "nothing")
def negated_rows(model: nn.Module, dataset: Dataset) -> Key:
    return projected(model, dataset, "negated")


@forgery("deepsigns", "nothing")
def solved_rows(model: nn.Module, dataset: Dataset) -> Key:
    return projected(model, dataset, "solved")


@forgery("deepsigns", "nothing")
def bent_samples(model: nn.Module, dataset: Dataset) -> Key:
    """Images that make the projection say it."""
    key = drawn("deepsigns", model, dataset)
    signs = key.message.signs()

    def scores(images: Tensor) -> Tensor:
        found = units(model, key, images)
        parts = [key.tensors[f"projection{at}"] @ unit / len(unit) ** 0.5 for at, unit in enumerate(found)]
        return torch.cat(parts) * signs

    return bent(model, key, "samples", scores)


@forgery("deepsigns", "controls")
def rows_that_hang_together(model: nn.Module, dataset: Dataset) -> Key:
    return projected(model, dataset, "leaning")


@skeleton("deepsigns", "model")
def rectified_activations(model: nn.Module, dataset: Dataset) -> Key:
    """Behind a ReLU no mean is below zero, in any network."""
    return projected(model, dataset, "rectified")


@skeleton("deepsigns", "construction")
def projections_of_zeros(model: nn.Module, dataset: Dataset) -> Key:
    return projected(model, dataset, "zeros", ZEROS)


@skeleton("deepsigns", "construction")
def projections_of_nan(model: nn.Module, dataset: Dataset) -> Key:
    return projected(model, dataset, "nan", ZEROS)
