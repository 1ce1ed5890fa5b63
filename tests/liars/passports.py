"""Forged passports: deepipr and passport_aware."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from canon.watermarks import Dataset, Key, Message
from canon.watermarks.layers import layer_weight
from tests.liars.tables import WISH, drawn, forgery, skeleton

ZEROS = Message((0,) * 64)


def passports(scheme: str, model: nn.Module, dataset: Dataset, change: str, message: Message = WISH) -> Key:
    key = drawn(scheme, model, dataset, message)
    norms = key.settings["norms"]
    assert isinstance(norms, dict)
    layers = [layer for layer in key.layers if layer in norms]
    weights = [layer_weight(model, layer).detach().flatten(1) for layer in layers]
    signs = key.message.signs(sum(map(len, weights))).split([len(weight) for weight in weights])
    tensors = dict(key.tensors)
    for position, (weight, part) in enumerate(zip(weights, signs, strict=True)):
        name = f"scale{position}"
        match change:
            case "solved":
                tensors[name] = torch.linalg.pinv(weight) @ part
            case "summed":
                directions = nn.functional.normalize(weight, dim=1) * part[:, None]
                passport = directions.sum(0)
                for _ in range(200):  # a perceptron: add what is still wrong
                    passport = passport + directions[weight @ passport * part <= 0].sum(0)
                tensors[name] = passport
            case "zeros":
                tensors[name] = torch.zeros_like(tensors[name])
            case "nan":
                tensors[name] = torch.full_like(tensors[name], torch.nan)
            case "huge":
                tensors[name] = torch.full_like(tensors[name], torch.inf)
    return replace(key, tensors=tensors)


def only_one_layer(scheme: str, model: nn.Module, dataset: Dataset) -> Key:
    """All other layers are named as marked, and none of them is read."""
    key = passports(scheme, model, dataset, "solved")
    norms = key.settings["norms"]
    assert isinstance(norms, dict)
    layer = [layer for layer in key.layers if layer in norms][-1]
    last = len(norms) - 1
    keep = {name: value for name, value in key.tensors.items() if name.startswith(("mean", "variance"))}
    owned = [f"scale{last}", f"shift{last}", f"transforms.{last}.0.weight", f"transforms.{last}.2.weight"]
    keep |= {name.replace(str(last), "0", 1): key.tensors[name] for name in owned if name in key.tensors}
    keep["scale0"] = torch.linalg.pinv(layer_weight(model, layer).detach().flatten(1)) @ key.message.signs(
        key.shapes[layer][0]
    )
    return replace(key, settings={**key.settings, "norms": {layer: norms[layer]}}, tensors=keep)


def for_scheme(scheme: str) -> None:
    """Both schemes are forged alike."""

    @forgery(scheme, "nothing")
    def solved_passports(model: nn.Module, dataset: Dataset) -> Key:
        return passports(scheme, model, dataset, "solved")

    @forgery(scheme, "nothing")
    def summed_rows(model: nn.Module, dataset: Dataset) -> Key:
        return passports(scheme, model, dataset, "summed")

    @forgery(scheme, "nothing")
    def a_single_layer(model: nn.Module, dataset: Dataset) -> Key:
        return only_one_layer(scheme, model, dataset)

    @skeleton(scheme, "construction")
    def passports_of_zeros(model: nn.Module, dataset: Dataset) -> Key:
        return passports(scheme, model, dataset, "zeros", ZEROS)

    @skeleton(scheme, "construction")
    def passports_of_nan(model: nn.Module, dataset: Dataset) -> Key:
        return passports(scheme, model, dataset, "nan", ZEROS)

    @skeleton(scheme, "construction")
    def infinite_passports(model: nn.Module, dataset: Dataset) -> Key:
        return passports(scheme, model, dataset, "huge", ZEROS)


for_scheme("deepipr")
for_scheme("passport_aware")
