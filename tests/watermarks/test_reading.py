"""Reading by index what exists, and passports against a real convolution."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from canon.errors import WatermarkError
from canon.watermarks.norms import normalised_convolutions
from canon.watermarks.passports import mean_patch
from canon.watermarks.reading import Reader, pooled_outputs, watched
from tests.watermarks.small import small_net


def test_crops_and_pads() -> None:
    model = small_net()
    weight = model.conv2.weight.detach()
    reader = Reader(model)
    read = reader.weight("conv2", (70, 10, 3, 3))
    assert torch.equal(read[:64], weight[:, :10])
    assert not read[64:].any()
    assert reader.mismatches == ("conv2.weight: expected 70×10×3×3, got 64×32×3×3",)
    assert torch.equal(Reader(model).weight("conv2", weight.shape), weight)


def test_what_cannot_be_read() -> None:
    reader = Reader(small_net())
    with pytest.raises(WatermarkError, match="no module 'conv9'"):
        reader.weight("conv9", (1,))
    with pytest.raises(WatermarkError, match="another architecture"):
        reader.weight("conv2", (64, 32))
    with pytest.raises(WatermarkError, match="no parameter 'bias'"):
        reader.parameter("conv2", "bias", (64,))


class InPlace(nn.Module):
    """Overwrites the norm's output after the norm has returned it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.norm = nn.BatchNorm2d(4)
        self.unused = nn.BatchNorm2d(4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(self.conv(images))
        out += 100
        return torch.relu_(out).mean((2, 3))


def test_in_place_operations_do_not_reach_what_was_read() -> None:
    model = InPlace().train()
    images = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    (output,) = pooled_outputs(model, ["norm"], images)
    assert output.shape == (2, 4)
    assert float(output.detach().abs().max()) < 50
    assert model.training, "the mode is restored"
    with pytest.raises(WatermarkError, match="does not reach"):
        pooled_outputs(model, ["unused"], images)


def test_outputs_come_in_the_order_they_are_asked_for() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 1), nn.BatchNorm2d(5))
    images = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    assert [output.shape[1] for output in pooled_outputs(model, ["3", "1"], images)] == [5, 4]
    with watched(model, ["2", "0"]) as outputs:
        model(images)
    assert list(outputs) == ["2", "0"]
    assert not any(module._forward_hooks for module in model), "nothing is left behind"


def test_pairs_are_found_by_what_flows() -> None:
    pairs = normalised_convolutions(InPlace(), torch.zeros(1, 3, 5, 5))
    assert pairs == {"conv": "norm"}


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (1, 1, 1), (2, 1, 1), (1, 0, 2)])
def test_mean_patch_is_the_mean_of_the_convolution(stride: int, padding: int, dilation: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        convolution = nn.Conv2d(5, 7, 3, stride, padding, dilation, bias=False)
        passport = torch.randn(1, 5, 8, 8)
    with torch.no_grad():
        expected = convolution(passport).mean((0, 2, 3))
        found = convolution.weight.flatten(1) @ mean_patch(passport, convolution)
    assert torch.allclose(found, expected, atol=1e-5)
