"""More or less than the owner's network: what has no counterpart is named; and a stranger stays one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import canon
from canon.normal import house
from canon_benchmarks.thief import rewritten
from tests.programs.small import Small, example, gap, hidden, key, network, owner


class Around(nn.Module):
    """A network with something around its trunk."""

    def __init__(self, trunk: nn.Module, **layers: nn.Module) -> None:
        super().__init__()
        self.inside = trunk
        for name, layer in layers.items():
            self.add_module(name, layer.double().eval())
        self.eval()


class MoreOutputs(Around):
    def forward(self, x: Tensor) -> Any:
        features = self.inside.trunk(x)  # type: ignore[operator]
        return features, self.inside.fc(features)  # type: ignore[operator]


class OtherHead(Around):
    def forward(self, x: Tensor) -> Any:
        return self.second(torch.tanh(self.first(self.inside.trunk(x))))  # type: ignore[operator]


class MoreBlocks(Around):
    def forward(self, x: Tensor) -> Any:
        return self.inside(x + torch.tanh(self.extra(x)))  # type: ignore[operator]


def small() -> Small:
    model = network()
    assert isinstance(model, Small)
    return model


ANCHORS = pytest.mark.parametrize("way", ["reference", "key"])


def judged(suspect: nn.Module, way: str) -> Any:
    anchor: dict[str, Any] = {"reference": owner()} if way == "reference" else {"layout_key": key()}
    return canon.judge(suspect, example(), **anchor)


@ANCHORS
def test_further_outputs_are_named(way: str) -> None:
    found = judged(MoreOutputs(small()), way)
    assert found.answers.network.answer == "contained"
    assert found.answers.function.answer == "agree"
    assert found.evidence["program"]["surplus"] == ["output 0"]
    assert found.evidence["program"]["outputs"] == [1]


@ANCHORS
def test_another_head_is_named(way: str) -> None:
    found = judged(OtherHead(small(), first=nn.Linear(20, 9), second=nn.Linear(9, 3)), way)
    assert found.answers.network.answer == "derived", found.answers.network.reason
    assert "layer 'second'" in found.evidence["program"]["surplus"]
    assert "fc" in {item["what"] for item in found.answers.network.missing}


@ANCHORS
def test_one_more_block_is_named(way: str) -> None:
    found = judged(MoreBlocks(small(), extra=nn.Conv2d(3, 3, 3, padding=1)), way)
    assert found.answers.network.answer in ("derived", "not decided"), found.answers.network.reason
    assert any("extra" in part for part in found.evidence["program"]["surplus"])


@ANCHORS
def test_a_missing_block_is_named(way: str) -> None:
    class Less(Small):
        def trunk(self, x: Tensor) -> Tensor:
            x = self.relu(self.norm0(self.stem(x)))
            x = torch.cat([torch.relu(self.left(x)), self.right(x)], 1)
            x = nn.functional.silu(self.norm4(self.wide(self.relu(self.norm3(x)))))
            x = self.norm6(self.narrow(self.relu(self.norm5(self.depth(x)))))
            result: Tensor = self.relu(self.group(x)).mean((2, 3))
            return result

    suspect = Less().double().eval()
    suspect.load_state_dict(owner().state_dict())
    found = judged(suspect, way)
    assert found.answers.network.answer in ("derived", "not decided"), found.answers.network.reason
    assert {"conv1", "conv2"} <= set(found.evidence["program"]["missing"])


@ANCHORS
def test_a_stranger_in_another_program_is_no_copy(way: str) -> None:
    stranger = rewritten(network(seed=5), ["swap_operands", "identity_conv", "rename"], seed=1)
    found = judged(stranger, way)
    assert found.answers.network.answer in ("unrelated", "not decided")
    assert found.verdict.kind in ("refuted", "inconclusive")


def test_another_input_size() -> None:
    suspect = rewritten(hidden(), ["zero_branch", "rename"], seed=1)
    large = torch.randn(1, 3, 20, 20, dtype=torch.float64)
    assert canon.judge(suspect, large, reference=owner()).answers.network.answer in ("equal", "contained")


def changed(name: str, size: float) -> fx.GraphModule:
    """A liar's copy: what looks like nothing does something."""
    for seed in range(20):
        suspect = rewritten(owner(), [name], seed=seed)
        layer: Any = next(m for n, m in suspect.named_modules() if n.startswith("extra_"))
        with torch.no_grad():
            layer.weight.add_(size * torch.randn(layer.weight.shape, dtype=torch.float64))
        if gap(suspect, owner()) > 1e-4:
            return suspect
    raise AssertionError("none of these rewritings can be made to do something")


@pytest.mark.parametrize("name", ["identity_conv", "identity_depthwise", "zero_branch", "identity_norm"])
def test_what_is_almost_nothing_is_not_dropped(name: str) -> None:
    liar = changed(name, 0.02)
    found = house(liar, owner(), example())
    if found.exact:
        assert gap(found.model, liar) < 1e-8  # the change was carried along, not dropped
        assert gap(found.model, owner()) > 1e-5
    answer = canon.judge(liar, example(), reference=owner()).answers.network.answer
    assert answer != "equal"


def test_a_branch_that_is_zero_for_these_inputs_only_is_not_dropped() -> None:
    class Sometimes(Small):
        def forward(self, x: Tensor) -> Tensor:
            x = self.trunk(x)
            result: Tensor = self.fc(x + torch.relu(x - 1e6))
            return result

    liar = Sometimes().double().eval()
    liar.load_state_dict(owner().state_dict())
    found = canon.judge(liar, example(), reference=owner())
    assert found.answers.network.answer not in ("equal", "contained")


def test_operands_that_only_numbers_tell_apart() -> None:
    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 20, 3, padding=1), nn.Conv2d(3, 20, 3, padding=1)
            self.three, self.four = nn.Conv2d(20, 24, 3), nn.Conv2d(20, 24, 3)
            self.fc = nn.Linear(24, 5)

        def forward(self, x: Tensor) -> Tensor:
            a, b = torch.relu(self.one(x)), torch.tanh(self.two(x))
            y = torch.relu(self.three(a)) + torch.relu(self.four(a)) * torch.sigmoid(self.four(b))
            result: Tensor = self.fc(y.mean((2, 3)))
            return result

    torch.manual_seed(0)
    mine = Twins().double().eval()
    suspect = rewritten(mine, ["swap_operands", "rename", "other_order"], seed=2)
    assert canon.judge(suspect, example(), reference=mine).answers.network.answer in ("equal", "contained")


class Branches(nn.Module):
    """Branches that structure does not tell apart."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 20, 3, padding=1)
        self.a, self.b = nn.Conv2d(20, 18, 3, padding=1), nn.Conv2d(20, 18, 3, padding=1)
        self.c, self.d = nn.Conv2d(36, 18, 3, padding=1), nn.Conv2d(36, 18, 3, padding=1)
        self.fc = nn.Linear(36, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        x = torch.cat([torch.relu(self.a(x)), torch.relu(self.b(x))], 1)
        x = torch.cat([torch.relu(self.c(x)), torch.relu(self.d(x))], 1)
        result: Tensor = self.fc(x.mean((2, 3)))
        return result


@pytest.mark.parametrize("names", [["other_join_order", "rename"], ["rename", "other_order"], ["other_order"]])
def test_branches_that_only_numbers_tell_apart(names: list[str]) -> None:
    mine = network(kind=Branches)
    disguised = canon.attack(mine, example(), "mix-opseq", ratio=0.2, seed=1).model
    suspect = rewritten(disguised, names, seed=3)
    anchors: list[dict[str, Any]] = [{"reference": mine}, {"layout_key": canon.register(mine, example(), seed=2)}]
    for anchor in anchors:
        found = canon.judge(suspect, example(), **anchor)
        assert found.answers.network.answer in ("equal", "contained"), found.answers.network.reason


def test_nothing_of_the_owners_numbers_is_taken() -> None:
    poisoned = copy.deepcopy(owner())
    with torch.no_grad():
        for parameter in poisoned.parameters():
            parameter.fill_(float("nan"))
    found = house(rewritten(hidden(), ["identity_conv", "fold_one_norm"], seed=2), poisoned, example())
    assert found.exact


def test_a_bias_before_a_norm_is_the_norms_mean() -> None:
    """The suspect's layer has a bias where the owner's has none; the norm behind it takes it off again."""
    torch.manual_seed(0)
    mine = [nn.Conv2d(3, 12, 3, bias=False), nn.BatchNorm2d(12), nn.Conv2d(12, 8, 3), nn.Linear(8 * 16, 5)]
    yours = [nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.Conv2d(12, 8, 3), nn.Linear(8 * 16, 5)]
    for own, other in zip(mine, yours, strict=True):
        other.load_state_dict(own.state_dict(), strict=False)
    with torch.no_grad():
        yours[1].running_mean += yours[0].bias  # type: ignore[operator]
    reference = nn.Sequential(*mine[:2], nn.ReLU(), mine[2], nn.ReLU(), nn.Flatten(), mine[3]).eval()
    suspect = nn.Sequential(*yours[:2], nn.ReLU(), nn.ReLU(), yours[2], nn.ReLU(), nn.Flatten(), yours[3]).eval()
    found = house(suspect, reference, torch.randn(2, 3, 8, 8))
    assert found.exact
    assert found.model.get_submodule("0").bias is None
    judged = canon.judge(suspect, torch.randn(2, 3, 8, 8), reference=reference)
    assert judged.answers.network.answer == "equal", judged.answers.network.reason


class Named(nn.Module):
    """Outputs under names that do not stand in the order of the alphabet."""

    def __init__(self, network: nn.Module, *, longer: bool = False) -> None:
        super().__init__()
        self.network, self.longer = network, longer

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Scores, and the two largest of them."""
        scores: Tensor = self.network(x)
        scores = scores.neg().neg() if self.longer else scores
        return {"scores": scores, "best": scores[:, :2]}


@pytest.mark.parametrize("by_key", [False, True])
def test_named_outputs_of_another_program_are_compared_with_their_own(by_key: bool) -> None:
    mine, given = Named(owner()).eval(), example()
    anchor: dict[str, Any] = {"layout_key": canon.register(mine, given)} if by_key else {"reference": mine}
    found = canon.judge(Named(owner(), longer=True).eval(), given, **anchor)
    assert found.evidence["program"] is not None
    assert found.answers.function.answer == "agree", found.answers.function.reason
