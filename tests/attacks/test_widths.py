"""Every free space grows by what the formula says, told from shapes and arithmetic alone."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from torch import nn

from canon import zoo
from canon.attacks import attack


def grown(width: int, ratio: str, steps: int, groups: int = 1) -> int:
    """`C ← C + ⌈ρ·C⌉`, as many times as there are primitives, block by block; exact."""
    block = width // groups
    for _ in range(steps):
        block += math.ceil(Fraction(ratio) * block)
    return block * groups


def convolutions(model: nn.Module) -> dict[str, nn.Conv2d]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d)}


@pytest.mark.parametrize("ratio", ["0.2", "0.5", "1.0"])
@pytest.mark.parametrize(
    ("ops", "steps"), [(["nso_zero"], 1), (["nso_clique"], 1), (["nso_split"], 1), ("mix-opseq", 2)]
)
def test_resnet18(ops: list[str] | str, steps: int, ratio: str) -> None:
    model, example = zoo.model("resnet18"), zoo.example_input("resnet18")
    attacked = attack(
        model, example, ops, ratio=float(ratio), sequence_length=2, select=("conv1", "layer1.*", "layer2.*")
    )
    for name, layer in convolutions(attacked.model).items():
        before = convolutions(model)[name]
        inside = name == "conv1" or name.startswith(("layer1.", "layer2."))
        reads = inside or name in ("layer3.0.conv1", "layer3.0.downsample.0")
        assert layer.out_channels == (grown(before.out_channels, ratio, steps) if inside else before.out_channels)
        if name == "conv1":
            assert layer.in_channels == 3
        else:
            assert layer.in_channels == (grown(before.in_channels, ratio, steps) if reads else before.in_channels)


def test_grouped_convolutions_grow_alike_in_every_group() -> None:
    model, example = zoo.model("regnet_y_400mf"), zoo.example_input("regnet_y_400mf")
    attacked = attack(model, example, ["nso_zero", "nso_split"], ratio=0.3)
    for name, layer in convolutions(attacked.model).items():
        before = convolutions(model)[name]
        assert layer.groups == before.groups
        if layer.groups > 1:
            assert layer.out_channels == grown(before.out_channels, "0.3", 2, before.groups)
            assert layer.in_channels == layer.out_channels


def test_kernels_grow_by_a_ring_and_their_padding_by_one() -> None:
    model, example = zoo.model("mobilenet_v2"), zoo.example_input("mobilenet_v2")
    attacked = attack(model, example, ["nso_clique"], expand_kernels=True)
    assert len(attacked.log.kernels) == len(convolutions(model))
    for name, layer in convolutions(attacked.model).items():
        before = convolutions(model)[name]
        assert layer.kernel_size == tuple(side + 2 for side in before.kernel_size)
        assert layer.padding == tuple(int(side) + 1 for side in before.padding)


def test_only_convolutions() -> None:
    model, example = zoo.model("vgg11_bn"), zoo.example_input("vgg11_bn")
    attacked = attack(model, example, ["nso_zero"], only_convolutions=True, ratio=0.1)
    linear = [m for m in attacked.model.modules() if isinstance(m, nn.Linear)]
    assert [layer.out_features for layer in linear] == [4096, 4096, 10]
    assert linear[0].in_features == grown(512, "0.1", 1) * 49
    assert attacked.log.unselected == ("classifier.0", "classifier.3")
