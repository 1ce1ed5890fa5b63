"""Layer norms and RMS norms that exporters write out are the norms that they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import canon
from canon._quiet import quiet
from tests.preservation import randomize

EXAMPLE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Written(nn.Module):
    """An RMS norm as transformers write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Network(nn.Module):
    """A convolution, a block of linear layers with a norm before it, and another norm before the head."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.conv, self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), first, second
        self.up, self.down, self.head = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).permute(0, 2, 3, 1)
        x = x + self.down(torch.relu(self.up(self.first(x))))
        result: Tensor = self.head(self.second(x).mean((1, 2)))
        return result


def through_onnx(model: nn.Module, path: Path) -> Any:
    """Written by the exporter that has no operator for norms, and read again."""
    with quiet(), torch.no_grad():
        torch.onnx.export(model, (EXAMPLE,), str(path), dynamo=False, opset_version=13, input_names=["x"])
    return canon.load(path)


def calls(model: Any) -> list[str]:
    return [node.target.__name__ for node in model.graph.nodes if node.op == "call_function"]


def test_layer_norms_are_found(tmp_path: Path) -> None:
    owner = randomize(Network(nn.LayerNorm(8), nn.LayerNorm(8))).float()
    hidden = canon.attack(owner, EXAMPLE, "mix-opseq", ratio=0.5, seed=1).model
    suspect = through_onnx(hidden, tmp_path / "suspect.onnx")
    assert calls(suspect).count("layer_norm") == 2
    assert "sqrt" not in calls(suspect)
    assert torch.allclose(suspect(EXAMPLE), hidden(EXAMPLE), atol=1e-5)
    assert canon.judge(suspect, EXAMPLE, reference=owner).answers.network.answer == "equal"
    key = canon.register(owner, EXAMPLE)
    assert canon.judge(suspect, EXAMPLE, layout_key=key).answers.network.answer == "equal"


def test_rms_norms_are_found(tmp_path: Path) -> None:
    owner = randomize(Network(nn.RMSNorm(8, eps=1e-6), nn.RMSNorm(8, eps=1e-6))).float()
    other = Network(Written(8), Written(8)).eval()
    other.load_state_dict(owner.state_dict())
    suspect = through_onnx(other, tmp_path / "suspect.onnx")
    assert calls(suspect).count("rms_norm") == 2
    assert canon.judge(suspect, EXAMPLE, reference=owner).answers.network.answer == "equal"


class Odd(nn.Module):
    """Nearly a norm."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.weight, self.bias = kind, nn.Parameter(torch.ones(8)), nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        axis = 2 if self.kind == "axis" else -1
        centred = x - x.mean(axis, keepdim=True)
        power = 4 if self.kind == "power" else 2
        seen = x if self.kind == "other" else centred
        return centred / torch.sqrt(seen.pow(power).mean(axis, keepdim=True) + 1e-5) * self.weight + self.bias


@pytest.mark.parametrize("kind", ["axis", "power", "other"])
def test_what_is_nearly_a_norm_stays(kind: str, tmp_path: Path) -> None:
    model = randomize(Network(Odd(kind), nn.Identity())).float()
    suspect = through_onnx(model, tmp_path / "suspect.onnx")
    assert "layer_norm" not in calls(suspect)
    assert torch.allclose(suspect(EXAMPLE), model(EXAMPLE), atol=1e-5)


def test_values_in_between_may_be_read(tmp_path: Path) -> None:
    class Read(Odd):
        def forward(self, x: Tensor) -> Tensor:
            centred = x - x.mean(-1, keepdim=True)
            normal = centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + 1e-5)
            return normal * self.weight + self.bias + normal + centred

    model = randomize(Network(Read(""), nn.Identity())).float()
    suspect = through_onnx(model, tmp_path / "suspect.onnx")
    assert "layer_norm" in calls(suspect)
    assert torch.allclose(suspect(EXAMPLE), model(EXAMPLE), atol=1e-5)
