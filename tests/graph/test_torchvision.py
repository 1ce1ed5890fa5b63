"""Public architectures: what must be free in them, and that what is free keeps the function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from canon.bench.lab import Setup
from canon.bench.measures import measure
from canon.zoo import import_torchvision
from canon_benchmarks.cases import Traced
from canon_benchmarks.measures.traced import NOT_CHECKED, torchvision_names
from tests.preservation import check_preserved, vary_constants

NAMES = torchvision_names()
FAST_TRACES = ("resnet18", "mobilenet_v3_small", "densenet121", "efficientnet_b0", "inception_v3", "vit_b_32")
FAST_REWRITES = ("resnet18", "shufflenet_v2_x0_5", "mobilenet_v3_small")
WHOLLY_FREE = (
    "resnet", "wide_resnet", "resnext", "regnet", "vgg", "densenet", "inception", "googlenet", "mobilenet", "mnasnet",
    "efficientnet", "squeezenet", "alexnet",
)  # fmt: skip
HIDDEN_FREE = ("convnext", "vit", "swin", "maxvit")


def split(fast: tuple[str, ...], names: tuple[str, ...] = NAMES) -> list[Any]:
    """All names, those outside the fast slice marked slow."""
    return [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in names]


def test_there_are_eighty() -> None:
    assert len(NAMES) == 80


@pytest.mark.parametrize("name", split(FAST_TRACES))
def test_a_model_traces_and_its_family_is_free(name: str) -> None:
    found = figures(name)
    assert found["front_end"] == "fx"
    if name.startswith(WHOLLY_FREE):
        assert found["pins"] == [["model output", 1]]
        assert found["free"] == found["total"] - 1
    elif name.startswith(HIDDEN_FREE):
        assert found["free_spaces"] >= hidden_layers(name)


def figures(name: str) -> dict[str, Any]:
    """What a trace of one model counts."""
    return dict(measure(Traced(source="torchvision", model=name), setup=Setup(Path("nothing is trained"))).metrics)


def hidden_layers(name: str) -> int:
    """MLP blocks of a transformer-like model: one hidden space each."""
    with torch.device("meta"):
        model = import_torchvision().models.get_model(name, weights=None)
    kinds = ("CNBlock", "EncoderBlock", "SwinTransformerBlock", "SwinTransformerBlockV2", "PartitionAttentionLayer")
    return sum(type(module).__name__ in kinds for module in model.modules())


@pytest.mark.parametrize(
    ("name", "spaces", "producers", "depthwise"),
    [
        ("resnet18", 12, 20, 0),
        ("efficientnet_b0", 40, 65, 16),
        ("inception_v3", 94, 94, 0),
        ("densenet121", 120, 120, 0),
    ],
)
def test_the_paper_models_are_found_whole(name: str, spaces: int, producers: int, depthwise: int) -> None:
    found = figures(name)
    assert (found["free_spaces"], found["free"], found["depthwise"]) == (spaces, producers, depthwise)


def build(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A model in float64 whose norms hide nothing, and a small input."""
    options: dict[str, Any] = {}
    size = {"inception_v3": 80, "alexnet": 64, "maxvit_t": 224}.get(name, 64 if "vit" in name else 32)
    if name.startswith("vit"):
        options["image_size"] = size
    if name in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False, "init_weights": False}
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = import_torchvision().models.get_model(name, weights=None, num_classes=10, **options).eval().double()
    vary_constants(model, generator)
    return model, torch.randn(2, 3, size, size, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", split(FAST_REWRITES, tuple(n for n in NAMES if n not in NOT_CHECKED)))
def test_free_spaces_keep_the_function(name: str) -> None:
    check_preserved(*build(name), one_by_one=False)
