"""An exact copy in a coarser type is the owner's, also where its rounding moves outputs as far as probes do."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import canon
from canon.api import check_evidence
from canon.errors import VerificationError
from canon.verify.digest import document_digest
from tests.verify.small import example, tiny


def still(size: float) -> nn.Module:
    """A network whose outputs are far from zero and hardly move from probe to probe."""
    net = tiny(0, 24)
    with torch.no_grad():
        net.get_parameter("fc.bias").add_(size * torch.linspace(1, 2, 10))
    return net


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("ops", [None, "mix-opseq"])
@pytest.mark.parametrize(("kind", "size"), [(torch.float16, 8.0), (torch.bfloat16, 4.0)])
def test_an_exact_copy_in_a_coarser_type_is_equal(
    kind: torch.dtype, size: float, ops: str | None, by_key: bool
) -> None:
    owner = still(size)
    suspect = copy.deepcopy(owner) if ops is None else canon.attack(owner, example(), ops, ratio=0.2, seed=3).model
    anchor = {"layout_key": canon.register(owner, example())} if by_key else {"reference": owner}
    found = canon.judge(suspect.to(kind), example().to(kind), **anchor)
    assert found.answers.function.answer == "agree", found.answers.function
    assert "rounding to" in found.answers.function.reason
    assert found.answers.network.answer == "equal", found.answers.network
    assert found.verdict.kind == "matches"
    check_evidence(found.evidence)


def test_another_network_in_a_coarser_type_is_still_refuted() -> None:
    found = canon.judge(tiny(1, 24).half(), example().half(), reference=tiny(0, 24))
    assert found.answers.function.answer == "disagree"
    assert found.verdict.kind == "refuted"


def test_where_rounding_moves_outputs_more_than_probes_do_nothing_is_decided() -> None:
    owner = still(3000.0)
    found = canon.judge(copy.deepcopy(owner).bfloat16(), example().bfloat16(), reference=owner)
    assert found.answers.function.answer == "not decided", found.answers.function
    assert found.verdict.kind != "refuted"


def test_where_single_precision_moves_outputs_its_rounding_is_measured_too() -> None:
    owner = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 5)).eval()
    first, second = owner.get_parameter("0.bias"), owner.get_parameter("2.weight")
    with torch.no_grad():
        first.fill_(1e5)
        second.sub_(second.mean(1, keepdim=True))
    x = torch.randn(4, 8)
    found = canon.judge(canon.attack(owner, x, "mix-opseq", ratio=0.2, seed=1).model, x, reference=owner)
    assert found.answers.function.answer == "agree", found.answers.function
    assert "rounding to float32" in found.answers.function.reason
    check_evidence(found.evidence)


def test_rounding_cannot_be_written_into_evidence_of_exact_models() -> None:
    found = canon.judge(tiny(0, 24), example(), reference=tiny(0, 24))
    document = copy.deepcopy(dict(found.evidence))
    document["function"] = {**document["function"], "rounding": 1e-3}
    document.pop("digest")
    with pytest.raises(VerificationError, match="moved by rounding"):
        check_evidence({**document, "digest": document_digest(document)})
