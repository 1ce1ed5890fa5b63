"""Functions of all channels that do not care for their order: channels change places, and their number stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import canon
from canon.graph import trace
from tests.networks import Net, conv, head, two_convs
from tests.preservation import check_preserved, outputs, randomize, relative_error

EXAMPLE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def last(function: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
    """With the channels on the last axis."""
    return lambda net, x: function(net, x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def written_layer_norm(net: Any, x: Tensor) -> Tensor:
    """As ONNX exporters write it."""
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.pow(2).mean(-1, keepdim=True)
    result: Tensor = centred / torch.sqrt(variance + 1e-5) * net.w + net.b2
    return result


def written_rms_norm(net: Any, x: Tensor) -> Tensor:
    """As transformers write it."""
    result: Tensor = net.w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
    return result


def written_instance_norm(net: Any, x: Tensor) -> Tensor:
    """Statistics of each channel, over positions."""
    centred = x - x.mean((2, 3), keepdim=True)
    return centred * torch.rsqrt(x.var((2, 3), unbiased=False, keepdim=True) + 1e-5)


def spatial_attention(net: Any, x: Tensor) -> Tensor:
    """As CBAM does: where the mean and the largest of all channels say so."""
    told = torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], 1)
    return x * torch.sigmoid(net.s(told))


def tensors() -> dict[str, Any]:
    """A weight and a shift for six channels."""
    return {"w": nn.Parameter(torch.rand(6)), "b2": nn.Parameter(torch.rand(6))}


RIGID: dict[str, Callable[[], nn.Module]] = {
    "layer norm": lambda: two_convs(last(lambda net, x: net.n(x)), n=nn.LayerNorm(6)),
    "layer norm without tensors": lambda: two_convs(last(lambda net, x: F.layer_norm(x, (6,)))),
    "rms norm": lambda: two_convs(last(lambda net, x: net.n(x)), n=nn.RMSNorm(6)),
    "layer norm, written out": lambda: two_convs(last(written_layer_norm), **tensors()),
    "rms norm, written out": lambda: two_convs(last(written_rms_norm), **tensors()),
    "softmax over channels": lambda: two_convs(lambda net, x: x.softmax(1)),
    "length one": lambda: two_convs(lambda net, x: F.normalize(x, dim=1)),
    "spatial attention": lambda: two_convs(spatial_attention, s=conv(2, 1)),
    "largest of all": lambda: two_convs(lambda net, x: x - x.amax(1, keepdim=True)),
    "spread of all": lambda: two_convs(lambda net, x: x / x.std((1, 2, 3), keepdim=True)),
}


@pytest.mark.parametrize("name", RIGID)
def test_channels_change_places_under_what_mixes_all_of_them(name: str) -> None:
    graph = check_preserved(randomize(RIGID[name]()), EXAMPLE)
    space = graph.space_named("a")
    assert space.pinned is None
    assert space.rigid is not None
    assert any(graph.taps[stage.output] in graph.fixed_taps for stage in space.stages)


FREE: dict[str, Callable[[], nn.Module]] = {
    "instance norm, written out": lambda: two_convs(written_instance_norm),
    "stack and largest": lambda: two_convs(lambda net, x: torch.stack([x, F.relu(-x)]).max(0)[0]),
    "stack and smallest": lambda: two_convs(lambda net, x: torch.stack([x, x * 2], 2).min(dim=2).values),
    "stack and sum": lambda: two_convs(lambda net, x: torch.stack([x, x.tanh()], 1).sum(1)),
    "length of positions": lambda: two_convs(lambda net, x: F.normalize(x, dim=3)),
    "spread of positions": lambda: two_convs(lambda net, x: x + x.std((2, 3), keepdim=True)),
}


@pytest.mark.parametrize("name", FREE)
def test_what_goes_over_positions_is_free(name: str) -> None:
    assert [space.name for space in check_preserved(randomize(FREE[name]()), EXAMPLE).free] == ["a", "b"]


PINNED: dict[str, Callable[[], nn.Module]] = {
    "neighbours": lambda: two_convs(lambda net, x: F.local_response_norm(x, 3)),
    "place of the largest": lambda: two_convs(lambda net, x: x * x.max(1, keepdim=True)[1]),
    "place along positions": lambda: two_convs(lambda net, x: x + x.max(3, keepdim=True)[1]),
    "running sum": lambda: two_convs(lambda net, x: x.cumsum(1)),
    "a weight for each place": lambda: two_convs(lambda net, x: net.n(x), n=nn.LayerNorm([6, 8, 8])),
}


@pytest.mark.parametrize("name", PINNED)
def test_what_cares_for_the_order_pins(name: str) -> None:
    assert check_preserved(randomize(PINNED[name]()), EXAMPLE).space_named("a").pinned


class Block(nn.Module):
    """As ConvNeXt's: depthwise, layer norm, two linear layers, layer scale, shortcut."""

    def __init__(self, width: int, norm: nn.Module | None) -> None:
        super().__init__()
        self.depthwise = conv(width, width, groups=width)
        self.norm, self.width = norm, width
        self.w, self.b2 = nn.Parameter(torch.rand(width)), nn.Parameter(torch.rand(width))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = written_layer_norm(self, y) if self.norm is None else self.norm(y)
        made: Tensor = self.scale * self.down(F.gelu(self.up(y)))
        return x + made.permute(0, 3, 1, 2)


@pytest.mark.parametrize("norm", [lambda: nn.LayerNorm(12), lambda: None], ids=["layer", "written out"])
def test_a_disguised_network_with_layer_norms_is_the_owners(norm: Callable[[], nn.Module | None]) -> None:
    owner: nn.Module = Net(
        lambda net, x: head(net, net.two(net.one(net.stem(x)))),
        stem=conv(3, 12), one=Block(12, norm()), two=Block(12, norm()), fc=nn.Linear(12, 5),
    )  # fmt: skip
    owner, example = randomize(owner).float(), EXAMPLE.float()
    assert [space.name for space in trace(owner, example).spaces if space.pins] == ["fc"]
    hidden = canon.attack(owner, example, "mix-opseq", ratio=0.5, seed=3).model
    assert not torch.equal(hidden.state_dict()["stem.weight"], owner.state_dict()["stem.weight"])
    assert relative_error(outputs(hidden, example), outputs(owner, example)) < 1e-3
    recovered = canon.recover(hidden, example).model
    assert canon.certify(recovered, owner, example).passed
    assert canon.locate(hidden, owner, example).coverage == 1.0
