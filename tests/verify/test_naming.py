"""A suspect from a file gets the reference's names by its structure, and nothing else of the reference."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import fx, nn

import canon
from canon.errors import VerificationError
from canon.graph import trace
from canon.graph.tensors import tensor_names
from canon.verify.architecture import Architecture
from canon.verify.naming import _renamed, named_alike
from tests.verify.small import example, tiny


def architecture(model: nn.Module) -> Architecture:
    return Architecture.of(trace(model, example()), tensor_names(model)[0])


def nameless(model: nn.Module) -> fx.GraphModule:
    """The same network with layers called 0, 1, 2 and so on."""
    traced = fx.symbolic_trace(model)
    targets = [str(node.target) for node in traced.graph.nodes if node.op == "call_module"]
    return _renamed(traced, {target: f"n{index}" for index, target in enumerate(targets)}).eval()


def test_names_come_back_and_numbers_stay() -> None:
    reference, suspect = tiny(), nameless(tiny(seed=1))
    assert not set(suspect.state_dict()) & set(reference.state_dict())
    found = named_alike(suspect, architecture(reference), example(), reference=reference)
    assert found.state_dict().keys() == tiny(seed=1).state_dict().keys()
    for name, tensor in tiny(seed=1).state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor)
    torch.testing.assert_close(found(example()), suspect(example()))


def test_norms_behind_layers_are_known_from_a_key() -> None:
    key = canon.register(tiny(), example())
    found = named_alike(nameless(tiny()), key.layout.architecture, example(), norms=key.norms or ())
    assert found.state_dict().keys() == tiny().state_dict().keys()


def test_what_needs_no_names_is_left_alone() -> None:
    reference = tiny()
    expected = architecture(reference)
    plain, other = tiny(seed=1), nameless(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3)).eval())
    assert named_alike(plain, expected, example()) is plain
    assert named_alike(other, expected, example()) is other


@pytest.mark.parametrize("name", ['a");__import__("os").mkdir("pwned");("', "import", "a..b", ""])
def test_hostile_names_are_not_taken(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shapes = dict(architecture(tiny()).shapes)
    hostile = Architecture({name: shapes.pop("conv1"), **shapes}, "")
    suspect = nameless(tiny())
    assert named_alike(suspect, hostile, example()) is suspect
    assert not (tmp_path / "pwned").exists()


def test_a_rewired_network_does_not_pass() -> None:
    class Rewired(nn.Module):
        """The layers of the reference, but the residual is left out."""

        def __init__(self) -> None:
            super().__init__()
            self.net = tiny()

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            net: nn.Module = self.net
            x = torch.relu(net.norm1(net.conv1(images)))  # type: ignore[operator]
            x = torch.relu(net.norm2(net.conv2(x)))  # type: ignore[operator]
            x = torch.relu(net.norm3(net.conv3(x)))  # type: ignore[operator]
            return net.fc(x.mean((2, 3)))  # type: ignore[operator, no-any-return]

    with pytest.raises(VerificationError, match="wired in different ways"):
        canon.align(nameless(Rewired().eval()), tiny(), example())
