"""A suspect from a file gets the reference's names by its structure, and nothing else of the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import canon
from canon.errors import VerificationError
from canon.graph import trace
from canon.graph.tensors import tensor_names
from canon.rewrite import fold_norms
from canon.verify.architecture import Architecture
from canon.verify.naming import _renamed, named_alike
from canon.verify.verdict import Matches
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


class Dense(nn.Module):
    """Norms behind layers, which can be folded, and norms behind a concatenation, which cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.n0 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.n1, self.conv1 = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1, bias=False)
        self.n2, self.conv2 = nn.BatchNorm2d(8), nn.Conv2d(8, 6, 3, padding=1, bias=False)
        self.n3, self.fc = nn.BatchNorm2d(14), nn.Linear(14, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.n0(self.stem(images)))
        y = self.conv2(torch.relu(self.n2(self.conv1(torch.relu(self.n1(x))))))
        z = torch.relu(self.n3(torch.cat([x, y], 1)))
        return self.fc(z.mean((2, 3)))  # type: ignore[no-any-return]


def dense() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Dense().eval()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean = torch.randn(module.num_features) * 0.1
                nn.init.normal_(module.weight, 1.0, 0.3)
    return model


@pytest.mark.parametrize("by", ["reference", "layout_key"])
def test_folded_norms_do_not_hide_the_others(by: str) -> None:
    reference = dense()
    attacked = canon.attack(reference, example(), ops=["mix-opseq"], ratio=0.5, seed=0, permute=True, scale=True).model
    suspect = nameless(fold_norms(attacked, example()).model)
    anchor: Any = reference if by == "reference" else canon.register(reference, example())
    assert isinstance(canon.judge(suspect, example(), **{by: anchor}).verdict, Matches)


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
