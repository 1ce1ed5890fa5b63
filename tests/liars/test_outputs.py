"""A liar hides a difference of one output beside another one, or among whole numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from canon.api import check_evidence, judge
from canon.verify import LayoutKey, register
from canon.verify.function import Outputs, compare_outputs
from tests.liars.networks import Perceptron, seeded

EXAMPLE = torch.randn(4, 12, generator=torch.Generator().manual_seed(0))


class Loud(Perceptron):
    """A quiet output beside a loud one that says nothing of the network."""

    def forward(self, x: Tensor) -> Any:
        quiet = super().forward(x) * 1e-6
        return quiet, 1e3 * (1 + x[:, :1])


class Whole(Perceptron):
    """Says which class is the largest, and nothing else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(8 * x).argmax(1)


@pytest.fixture(params=["reference", "layout_key"])
def anchor(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[nn.Module], dict[str, Any]]:
    def made(owner: nn.Module) -> dict[str, Any]:
        if request.param == "reference":
            return {"reference": owner}
        register(owner, EXAMPLE).save(tmp_path / "owner.layout", force=True)
        return {"layout_key": LayoutKey.load(tmp_path / "owner.layout")}

    return made


def test_a_loud_output_hides_no_other_one(anchor: Callable[[nn.Module], dict[str, Any]]) -> None:
    owner = seeded(Loud)
    assert judge(owner, EXAMPLE, **anchor(owner)).answers.network.answer == "equal"
    liar = copy.deepcopy(owner)
    with torch.no_grad():
        liar.get_parameter("third.bias").normal_(generator=torch.Generator().manual_seed(3))
    for suspect in (liar, seeded(Loud, 5)):
        found = judge(suspect, EXAMPLE, **anchor(owner))
        assert found.answers.function.answer == "disagree", found.answers.function
        assert found.answers.network.answer not in ("equal", "contained")
        check_evidence(found.evidence)


def test_whole_numbers_are_outputs_too(anchor: Callable[[nn.Module], dict[str, Any]]) -> None:
    owner = seeded(Whole)
    assert judge(owner, EXAMPLE, **anchor(owner)).answers.function.answer == "agree"
    assert judge(seeded(Whole, 5), EXAMPLE, **anchor(owner)).answers.function.answer == "disagree"


@pytest.mark.parametrize(("other", "agrees"), [(0.0, True), (1e-4, True), (1.0, False)])
def test_an_output_that_never_moves_is_measured_by_its_size(other: float, agrees: bool) -> None:
    moving, still = torch.randn(8, 3, dtype=torch.float64), torch.full((8, 2), 50.0, dtype=torch.float64)
    ours, theirs = (Outputs(torch.cat([moving, x], 1), (3, 2)) for x in (still + other, still))
    difference = compare_outputs(ours, theirs, "random").difference
    assert difference is not None
    assert (difference <= 0.01) == agrees
