"""What cannot change an answer is not done: recoveries and comparisons of models as large as files cost most."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from canon.api import certify, certifying, comparing, containing, judge
from canon.api.recovering import recover
from canon.containment import locating
from canon.graph.tensors import PIECE, not_finite
from canon.verify import alignment
from canon.verify.matching import nearest_other
from tests.verify.small import example, tiny


def wider(model: nn.Module) -> nn.Module:
    """The model with one more channel that everything reads: no recovery may take it away."""
    layers: Any = tiny(7, width=16)
    layers.load_state_dict(model.state_dict())
    with torch.no_grad():
        for norm, before, after in ((layers.norm3, layers.conv3, layers.fc),):
            before.weight = nn.Parameter(torch.cat([before.weight, torch.randn(1, *before.weight.shape[1:])]))
            before.out_channels += 1
            after.weight = nn.Parameter(torch.cat([after.weight, torch.randn(10, 1)], dim=1))
            after.in_features += 1
            for name, value in (("weight", 1.0), ("bias", 0.1), ("running_mean", 0.0), ("running_var", 1.0)):
                longer = torch.cat([getattr(norm, name), torch.tensor([value])])
                setattr(norm, name, nn.Parameter(longer) if name in ("weight", "bias") else longer)
            norm.num_features += 1
    result: nn.Module = layers.eval()
    return result


@pytest.fixture
def recoveries(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    found: list[nn.Module] = []
    plain = recover

    def counted(model: nn.Module, *given: Any, **more: Any) -> Any:
        found.append(model)
        return plain(model, *given, **more)

    for module in (comparing, certifying, containing):
        monkeypatch.setattr(module, "recover", counted)
    return found


def test_a_suspect_that_stays_wider_is_recovered_once(recoveries: list[nn.Module]) -> None:
    owner = tiny()
    found = judge(wider(owner), example(), reference=owner)
    assert found.compared.alignment is None
    assert found.compared.location is not None
    assert len(recoveries) == 1


def test_a_reference_without_redundancy_is_no_reason_to_recover_the_suspect(recoveries: list[nn.Module]) -> None:
    owner, changed = tiny(), tiny()
    with torch.no_grad():
        changed.get_parameter("conv2.weight").mul_(1.05)
    assert not certify(changed, owner, example()).passed
    assert recoveries == [owner]


def test_where_the_order_is_given_no_neighbour_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, changed = tiny(), tiny()
    with torch.no_grad():
        changed.get_parameter("fc.weight").add_(0.01)
    searched: list[int] = []

    def counted(features: Tensor, *given: Any) -> Tensor:
        searched.append(len(features))
        return plain(features, *given)

    plain = nearest_other
    monkeypatch.setattr(alignment, "nearest_other", counted)
    found = alignment.align(changed, owner, example())
    assert not searched, "only the head differs, whose order is given"
    (head,) = [space for space in found.spaces if space.pinned]
    assert head.worst > 1e-3
    assert head.distinct == 1


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_in_half_precision_that_are_not_finite(kind: torch.dtype, bad: float) -> None:
    large = torch.full((3 * PIECE + 5,), torch.finfo(kind).max / 2, dtype=kind)
    assert not not_finite([("large", large)]), "a sum that overflows is no damage"
    for place in (0, PIECE, len(large) - 1):
        damaged = large.clone()
        damaged[place] = bad
        assert not_finite([("fine", large), ("damaged", damaged)]) == ["damaged"]


class Residual(nn.Module):
    """What the first layer makes, the next one adds to: no space belongs to the first alone."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 24, 3), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The whole network."""
        x = torch.relu(self.stem(x))
        result: Tensor = self.head((x[..., 1:-1, 1:-1] + self.block(x)).mean((2, 3)))
        return result


def test_where_all_channels_were_found_no_other_inputs_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    owner, images = Residual().eval(), torch.randn(2, 3, 8, 8)
    suspect = copy.deepcopy(owner)
    with torch.no_grad():
        for tensor in suspect.parameters():
            tensor.add_(0.01 * tensor.std() * torch.randn_like(tensor))
    monkeypatch.setattr(locating, "in_owner_convention", lambda *_: pytest.fail("other inputs were tried"))
    found = locating.locate(suspect, owner, images)
    assert (found.answer, found.coverage) == ("derived", 1.0)
    assert not any(layer.first for layer in found.layers)
