"""Forged projections of weights: uchida17 and riga21."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from canon.watermarks import Dataset, Key, Message
from canon.watermarks.layers import layer_weight
from canon.watermarks.uchida17 import mean_kernels
from tests.liars.tables import WISH, drawn, forgery, skeleton

ZEROS = Message((0,) * 64)
"""What a key of zeros or NaN used to read from every model."""


def means(model: nn.Module, key: Key) -> Tensor:
    return mean_kernels(layer_weight(model, layer).detach() for layer in key.layers)


def uchida(model: nn.Module, dataset: Dataset, change: str = "none", message: Message = WISH) -> Key:
    key = drawn("uchida17", model, dataset, message)
    vector, signs, columns = means(model, key), key.message.signs(), key.tensors["projection"]
    scores = vector @ columns
    match change:
        case "negated":
            columns = columns * torch.sign(scores) * signs
        case "solved":  # the nearest projection that reads as wished
            columns = columns + torch.outer(vector, (signs * scores.abs() - scores) / vector.square().sum())
        case "direction":
            columns = torch.outer(vector / vector.norm(), signs)
        case "leaning":
            columns = columns + 40 * torch.outer(vector / vector.norm(), signs)
        case "few":  # a column hears one of eight positions, and the others faintly
            heard = vector.abs().topk(8).indices[torch.arange(len(signs)) % 8]
            columns = 5e4 * columns / len(vector) ** 0.5
            columns[heard, torch.arange(len(signs))] = 5e5 * torch.sign(vector[heard]) * signs
        case "paired":  # two by two nearly opposite, so that they are never both right, but for this model
            apart = torch.randn(len(vector), len(signs) // 2).repeat_interleave(2, 1)
            apart = apart * torch.tensor([1.0, -1.0]).repeat(len(signs) // 2) + 0.1 * torch.randn(columns.shape)
            apart = apart - torch.outer(vector, vector @ apart / vector.square().sum())
            columns = (apart + 0.01 * (vector / vector.norm())[:, None]) * signs
        case "zeros":
            columns = torch.zeros_like(columns)
        case "nan":
            columns = torch.full_like(columns, torch.nan)
    return replace(key, tensors={"projection": columns})


@forgery("uchida17", "nothing")
def negated_columns(model: nn.Module, dataset: Dataset) -> Key:
    return uchida(model, dataset, "negated")


@forgery("uchida17", "nothing")
def solved_projection(model: nn.Module, dataset: Dataset) -> Key:
    return uchida(model, dataset, "solved")


@forgery("uchida17", "construction")
def the_model_itself(model: nn.Module, dataset: Dataset) -> Key:
    return uchida(model, dataset, "direction")


@forgery("uchida17", "controls")
def columns_that_hang_together(model: nn.Module, dataset: Dataset) -> Key:
    return uchida(model, dataset, "leaning")


@forgery("uchida17", "controls")
def few_positions(model: nn.Module, dataset: Dataset) -> Key:
    """Nine bits are one."""
    return uchida(model, dataset, "few")


@forgery("uchida17", "nothing")
def columns_that_hide_their_scatter(model: nn.Module, dataset: Dataset) -> Key:
    """Right bits of controls scatter less than coins do."""
    return uchida(model, dataset, "paired")


@skeleton("uchida17", "construction")
def projection_of_zeros(model: nn.Module, dataset: Dataset) -> Key:
    return uchida(model, dataset, "zeros", ZEROS)


@skeleton("uchida17", "construction")
def projection_of_nan(model: nn.Module, dataset: Dataset) -> Key:
    return uchida(model, dataset, "nan", ZEROS)


@skeleton("uchida17", "model")
def layers_that_are_not_there(model: nn.Module, dataset: Dataset) -> Key:
    """A key for a far wider layer, whose carriers lie in what is missing: it used to count as zero, and zero as 0."""
    key = drawn("uchida17", model, dataset, ZEROS)
    layer, (outputs, inputs, *kernel) = key.layers[-1], key.shapes[key.layers[-1]]
    shape = (outputs, 32 * inputs, *kernel)
    count = layer_weight(model, layer)[0].numel()
    columns = torch.randn(32 * count, 64)
    columns[:count] = 0
    return replace(key, shapes={layer: shape}, tensors={"projection": columns})


def riga(model: nn.Module, dataset: Dataset, change: str, message: Message = WISH) -> Key:
    key = drawn("riga21", model, dataset, message)
    tensors, signs = dict(key.tensors), key.message.signs()
    vector = (means(model, key) - tensors["centre"]) / tensors["unit"]
    hidden = nn.functional.leaky_relu(tensors["extractor.0.weight"] @ vector + tensors["extractor.0.bias"], 0.2)
    scores = tensors["extractor.2.weight"] @ hidden + tensors["extractor.2.bias"]
    name, bias = "extractor.2.weight", "extractor.2.bias"
    match change:
        case "negated":
            turn = torch.sign(scores) * signs
            tensors |= {name: tensors[name] * turn[:, None], bias: tensors[bias] * turn}
        case "solved":
            tensors[name] = tensors[name] + torch.outer(signs * scores.abs() - scores, hidden / hidden.square().sum())
        case "direction":
            tensors |= {name: torch.outer(signs, hidden), bias: torch.zeros_like(scores)}
        case "biased":
            tensors[bias] = 1e5 * signs
        case "mostly":  # two of three bits by their biases
            sure = torch.arange(len(signs)) % 3 > 0
            tensors[bias] = torch.where(sure, 1e3 * signs, tensors[bias])
        case "deaf":
            tensors |= {name: torch.zeros_like(tensors[name]), bias: signs}
        case "unit":
            tensors["unit"] = torch.tensor(torch.inf)
            tensors |= {"extractor.0.bias": torch.zeros(512), bias: signs}
    return replace(key, tensors=tensors)


@forgery("riga21", "nothing")
def negated_outputs(model: nn.Module, dataset: Dataset) -> Key:
    return riga(model, dataset, "negated")


@forgery("riga21", "nothing")
def solved_outputs(model: nn.Module, dataset: Dataset) -> Key:
    return riga(model, dataset, "solved")


@forgery("riga21", "luck")
def trained_extractor(model: nn.Module, dataset: Dataset) -> Key:
    """As an honest owner trains it, only that the model does not move: its bits lean together on any model."""
    key = drawn("riga21", model, dataset)
    tensors = {name: value.clone() for name, value in key.tensors.items()}
    vector = (means(model, key) - tensors["centre"]) / tensors["unit"]
    trained = [value.requires_grad_() for name, value in tensors.items() if name.startswith("extractor")]
    first, first_bias, second, second_bias = trained
    optimizer = torch.optim.RMSprop(trained, lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    loss_of = nn.functional.binary_cross_entropy_with_logits
    for _ in range(100):
        order = torch.rand(24, len(vector), generator=generator).argsort(1)
        bank = torch.cat([torch.randn(24, len(vector), generator=generator), vector[order]])
        inputs = torch.cat([vector[None], bank])
        logits = nn.functional.leaky_relu(inputs @ first.T + first_bias, 0.2) @ second.T + second_bias
        coins = torch.randint(0, 2, logits[1:].shape, generator=generator).float()
        loss = loss_of(logits[0], key.message.tensor()) + 10 * loss_of(logits[1:], coins)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return replace(key, tensors={name: value.detach() for name, value in tensors.items()})


@forgery("riga21", "construction")
def outputs_of_one_direction(model: nn.Module, dataset: Dataset) -> Key:
    return riga(model, dataset, "direction")


@skeleton("riga21", "controls")
def huge_biases(model: nn.Module, dataset: Dataset) -> Key:
    return riga(model, dataset, "biased")


@skeleton("riga21", "luck")
def mostly_biases(model: nn.Module, dataset: Dataset) -> Key:
    """As much as controls may read on average without a key being void; from others it reads no more than from them."""
    return riga(model, dataset, "mostly")


@skeleton("riga21", "construction")
def deaf_extractor(model: nn.Module, dataset: Dataset) -> Key:
    return riga(model, dataset, "deaf")


@skeleton("riga21", "construction")
def infinite_unit(model: nn.Module, dataset: Dataset) -> Key:
    return riga(model, dataset, "unit")
