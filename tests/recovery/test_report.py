"""What a user reads: every decision with the numbers that led to it, as objects, as JSON and as a table."""

from __future__ import annotations

import json

import pytest
import torch

from canon.recovery import RecoveryReport, recover
from canon.recovery.tolerance import Tolerance, stored_precision
from tests.preservation import randomize
from tests.recovery.small import Chain, Draft, example


@pytest.fixture(scope="module")
def report() -> RecoveryReport:
    """One of each kind, planted at known places."""
    model = randomize(Chain(), seed=3)
    assert isinstance(model, Chain)
    draft = Draft(model)
    draft.copy("a", 2, 0.5, 0.5)  # 6
    draft.clique("a", 3)  # 7, 8, 9
    draft.add("a", {**draft.silent("a"), "na.bias": 0.7}, {"b.weight": draft.random(5, 1, 1)})  # 10
    draft.add("a", draft.silent("a"), {"b.weight": draft.random(5, 1, 1)})  # 11
    draft.add("a")  # 12
    return recover(Chain.of(draft.state), example()).report


def test_decisions(report: RecoveryReport) -> None:
    space = report.spaces[0]
    found = {decision.kind: decision for decision in space.decisions}
    assert len(found) == len(space.decisions) == 5
    assert (found["duplicate"].channels, found["duplicate"].leader) == ((6,), 2)
    assert found["clique"].channels == (7, 8, 9)
    assert found["clique"].cancelled < 1e-12
    assert found["constant"].channels == (10,)
    assert found["zero-in"].channels == (11,)
    assert found["zero-out"].channels == (12,)
    assert {kind for kind, decision in found.items() if decision.ambiguous} == {"constant", "zero-in", "zero-out"}
    assert all(decision.spread < 1e-9 for decision in space.decisions)


def test_totals(report: RecoveryReport) -> None:
    assert report.changed
    assert (report.removed, report.merged) == (6, 1)
    assert dict(report.spaces[0].counts) == {"zero-in": 1, "zero-out": 1, "clique": 3, "duplicate": 1, "constant": 1}
    assert report.parameters[0] > report.parameters[1] == sum(p.numel() for p in Chain().parameters())
    assert report.agreement is not None
    assert report.agreement < 1e-12
    assert report.spaces[-1].pinned is not None
    assert set(report.seconds) == {"trace", "describe", "reduce", "passes", "rewrite", "check"}
    assert report.tolerance == Tolerance.of(torch.float64)


def test_json(report: RecoveryReport) -> None:
    data = json.loads(report.to_json())
    assert data["spaces"][0]["decisions"][0]["kind"] in ("zero-in", "duplicate")
    assert data["spaces"][-1]["pinned"].startswith("model output")
    assert data["parameters"] == list(report.parameters)
    assert "decisions" not in json.loads(report.to_json(decisions=False))["spaces"][0]


def test_table(report: RecoveryReport) -> None:
    lines = report.table().splitlines()
    assert lines[0].split() == ["space", "before", "after", "zero-in", "zero-out", "clique", "duplicate", "constant"]
    assert lines[1].split() == ["a", "13", "6", "1", "1", "3", "1", "1"]
    assert len(lines) == 3
    assert lines[2].startswith("6 channels removed, 1 merged; ")


def test_a_model_that_stays_has_a_short_table() -> None:
    model = randomize(Chain(), seed=3)
    report = recover(model, example()).report
    assert len(report.table().splitlines()) == 2
    assert report.agreement is None
    assert all(not space.decisions for space in report.spaces)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_precision_of_numbers_is_seen_through_their_type(dtype: torch.dtype) -> None:
    values = torch.randn(1000, dtype=torch.float64).to(dtype)
    assert stored_precision([values]) == dtype
    if dtype in (torch.float16, torch.bfloat16):
        assert stored_precision([values.float()]) == dtype
    assert Tolerance.of(dtype).strict().equal <= Tolerance.of(dtype).equal
