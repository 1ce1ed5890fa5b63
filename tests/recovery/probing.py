"""Small networks and helpers for the tests of the probe method."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from canon.graph import trace
from canon.graph.tensors import tensor_names
from canon.recovery import ProbeOptions, Tolerance
from canon.recovery.partition import Classes
from canon.recovery.probe import probe_classes
from tests.preservation import outputs, relative_error

EXAMPLE = torch.zeros(2, 3, 12, 12)
PRIMITIVES = ("nso_zero", "nso_clique", "nso_split")


class Residual(nn.Module):
    """A stem, one residual block, a head; the block's output shares the stem's space."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.a, self.a_norm = nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12)
        self.b, self.b_norm = nn.Conv2d(12, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem_norm(self.stem(x)))
        y = torch.relu(self.a_norm(self.a(x)))
        x = torch.relu(x + self.b_norm(self.b(y)))
        return self.head(x.mean((2, 3)))  # type: ignore[no-any-return]


def residual(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    model = Residual().eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                for tensor in (module.running_mean, module.bias):
                    assert tensor is not None, "plain norms"
                    tensor.normal_(0, 0.2)
    return model


def chain(*widths: int) -> nn.Sequential:
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for given, made in pairwise(widths):
        layers += [nn.Linear(given, made), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).eval()


def linear(model: nn.Module, index: int) -> nn.Linear:
    layer = model.get_submodule(str(index))
    assert isinstance(layer, nn.Linear), f"layer {index} is linear"
    return layer


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def check_recovered(got: nn.Module, clean: nn.Module, example: Tensor) -> None:
    assert shapes(got) == shapes(clean)
    probe = torch.randn(4, *example.shape[1:], generator=torch.Generator().manual_seed(5))
    assert relative_error(outputs(got, probe), outputs(clean, probe)) < 1e-5


def classes_of(model: nn.Module, example: Tensor, **options: Any) -> dict[str, Classes]:
    graph = trace(model, example)
    with torch.no_grad():
        found = probe_classes(model, example, graph, tensor_names(model)[0], Tolerance.for_model(model),
                              ProbeOptions(**options))  # fmt: skip
    return {space.name: found[space.id] for space in graph.spaces}


def groups(classes: Classes) -> set[tuple[int, ...]]:
    """Classes of more than one channel."""
    members: dict[int, list[int]] = {}
    for channel, leader in enumerate(classes.leader.tolist()):
        members.setdefault(leader, []).append(channel)
    return {tuple(channels) for channels in members.values() if len(channels) > 1}


def with_copies(seed: int = 0) -> nn.Sequential:
    """Layer 0 has channel 1 twice; layer 2 has rows 0 and 5 that differ in weights and agree on what those carry."""
    model = chain(6, 5, 6, 4)
    generator = torch.Generator().manual_seed(seed)
    wide = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4)).eval()
    first, second, third = (linear(wide, index) for index in (0, 2, 4))
    old_first, old_second, old_third = (linear(model, index) for index in (0, 2, 4))
    with torch.no_grad():
        first.weight.copy_(torch.cat([old_first.weight, 2 * old_first.weight[1:2]]))
        first.bias.copy_(torch.cat([old_first.bias, 2 * old_first.bias[1:2]]))
        # Row r reads channel 1 with a_r and its double with b_r; only a_r + 2 b_r matters.
        part = torch.randn(6, generator=generator)
        part[5] = -part[0]
        rows, bias = old_second.weight.clone(), old_second.bias.clone()
        rows[5], bias[5] = rows[0], bias[0]
        second.weight.copy_(torch.cat([rows, part[:, None]], dim=1))
        second.weight[:, 1] -= 2 * part
        second.bias.copy_(bias)
        third.weight.copy_(old_third.weight)
        third.bias.copy_(old_third.bias)
    return wide
