"""How often a verdict traces: three times at most, where nothing is unusual."""

from __future__ import annotations

import pytest
from torch import nn

from canon.api import judge
from canon.attacks import attack
from canon.graph import tracer
from canon.verify import register
from tests.verify.small import example, tiny


@pytest.mark.parametrize("by_key", [False, True])
def test_a_plain_verdict_traces_three_times(by_key: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = tiny(0)
    suspect = attack(owner, example(), ["nso_clique", "nso_split"], ratio=0.3, seed=1).model
    key = register(owner, example())
    traced: list[nn.Module] = []
    really = tracer._trace_with

    def count(method: object, frontend: object, model: nn.Module) -> object:
        traced.append(model)
        return really(method, frontend, model)  # type: ignore[arg-type]

    monkeypatch.setattr(tracer, "_trace_with", count)
    found = judge(suspect, example(), layout_key=key) if by_key else judge(suspect, example(), reference=owner)
    assert found.verdict.kind == "matches"
    assert 1 <= len(traced) <= 3
