"""The slow front end finds no more than is true: small networks again, with torch.fx out of the way."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from canon.graph import tracer
from canon.graph.frontend import FrontendError
from tests.networks import Case
from tests.pinned import CASES
from tests.preservation import check_preserved, randomize

FAST = ("residual in place", "dense block", "squeeze and excitation", "stale name of a value changed in place")


@pytest.fixture
def _no_fx(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: nn.Module, *rest: Any) -> Any:
        raise FrontendError("out of the way")

    monkeypatch.setattr(tracer, "fx_operations", refuse)


@pytest.mark.usefixtures("_no_fx")
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if case.name in FAST else pytest.mark.slow) for case in CASES],
)
def test_free_spaces_keep_the_function(case: Case) -> None:
    graph = check_preserved(randomize(case.build()), case.example(), one_by_one=False)
    assert graph.method == "recorded"
    # What pins for torch.fx because nothing is known of it must not be free here.
    assert {space.name for space in graph.free} <= {*case.free, "a", "b", "c", "d"}
