"""The models that attacks and recovery are measured on, with numbers in them that hide nothing.

A freshly built network has norms that do nothing (mean 0, variance 1), biases of zero, layer scales of one millionth,
and at times a head of zeros: a mistake in any of these would not show. `subject` fills them with ordinary numbers.
"""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from canon import zoo

MODELS: Final = (
    "resnet18", "efficientnet_b0", "inception_v3", "densenet121", "vgg11_bn", "mobilenet_v2", "mobilenet_v3_small",
    "googlenet", "squeezenet1_1", "resnext50_32x4d", "regnet_y_400mf", "convnext_tiny", "vit_b_16",
)  # fmt: skip
"""The four models of the paper, and nine that differ from them in what they are made of."""

VARIANTS: Final = ("nso_zero", "nso_clique", "nso_split", "mix-opseq", "mix-opseq-per-merge-group")
RATIOS: Final = (0.2, 0.5, 1.0)
SEEDS: Final = (0, 1, 2)

BATCH: Final = 4
"""Inputs that logits are compared on."""


def subject(name: str, *, seed: int = 0, device: str = "cpu") -> nn.Module:
    """A model of the zoo with 10 classes and no trivial number in it, in evaluation mode.

    >>> float(subject("squeezenet1_1").features[0].bias.detach().std()) > 0
    True
    """
    model = zoo.model(name, classes=10, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, _NormBase):
                _fill_norm(module, generator)
        for path, parameter in model.named_parameters():
            if "layer_scale" in path:
                parameter.copy_(torch.rand(parameter.shape, generator=generator) * 0.4 + 0.1)
            elif not bool(parameter.any()):
                spread = 0.05 if parameter.ndim == 1 else 1 / math.sqrt(parameter[0].numel())
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread)
    return model.to(device)


def convolutions(*widths: tuple[int, int]) -> list[nn.Module]:
    """Convolutions with norms, one behind the other: width and stride of each."""
    layers: list[nn.Module] = []
    for (before, _), (width, stride) in pairwise([(3, 1), *widths]):
        layers += [nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return layers


@torch.no_grad()
def with_statistics(model: nn.Module, example: Tensor) -> nn.Module:
    """The same model with norms that know the values they are given, as training leaves them.

    Through norms that do not, deep networks give nearly the same output for every input.
    """
    generator = torch.Generator().manual_seed(0)
    norms = [module for module in model.modules() if isinstance(module, _NormBase)]
    rates = [norm.momentum for norm in norms]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    model(torch.randn(64, *example.shape[1:], generator=generator))
    for norm, rate in zip(norms, rates, strict=True):
        norm.eval()
        norm.momentum = rate
    return model


def _fill_norm(norm: _NormBase, generator: torch.Generator) -> None:
    shape = (norm.num_features,)
    if norm.running_mean is not None and norm.running_var is not None:
        norm.running_mean.copy_(torch.randn(shape, generator=generator) * 0.1)
        norm.running_var.copy_(torch.rand(shape, generator=generator) + 0.5)
    if norm.affine:
        norm.weight.copy_(torch.randn(shape, generator=generator) * 0.3 + 1)
        norm.bias.copy_(torch.randn(shape, generator=generator) * 0.1)


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor, by name."""
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def inputs(name: str, seed: int = 0) -> Tensor:
    """Random images of the size that a model is fed."""
    return zoo.example_input(name, batch=BATCH, seed=1000 + seed)


@torch.no_grad()
def logits(model: nn.Module, given: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """What a model answers, in float64 on the CPU; its numbers are as they are, the arithmetic is in `dtype`."""
    parameter = next(model.parameters())
    if parameter.dtype != dtype:
        model = copy.deepcopy(model).to(dtype)
    return model(given.to(device=parameter.device, dtype=dtype)).double().cpu()  # type: ignore[no-any-return]


def gap(got: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest logit."""
    return float((got - expected).abs().max() / expected.abs().max())
