"""Small measurements: limits, and the budget of a trace."""

from __future__ import annotations

from functools import partial

import pytest

from canon_benchmarks.cases import Cost
from canon_benchmarks.measures import cost
from canon_benchmarks.measures.clock import Times
from tests.benchmarks.measured import measured, page


def given(value: float, case: Cost, device: str) -> tuple[float, str]:
    return value, "said"


def test_a_value_over_its_limit_is_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, shown in ((1.0, "| trace resnet18 | 1.00 | 3 |"), (9.0, "trace resnet18 | <span")):
        monkeypatch.setitem(cost.MEASURES, "trace", partial(given, value))
        found = measured(Cost(what="trace", model="resnet18"))
        assert found.good is (value == 1.0)
        assert shown in page(found)


def test_a_trace_keeps_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "REPEATS", 3)
    found = measured(Cost(what="trace", model="resnet18"))
    assert found.good, found.metrics


def test_the_time_of_an_attack_is_measured_beside_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "REPEATS", 1)  # no bound of time is checked here
    found = measured(Cost(what="attack", model="squeezenet1_1", attack="nso_zero")).metrics
    assert found["value"] > 0
    assert found["limit"] == 5
    assert "clone" in found["note"]


def test_the_growth_of_an_attack_s_time_is_a_slope_over_the_bytes_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "time_of", lambda *_, **__: Times((1.0,)))
    case = Cost(what="growth", model="squeezenet1_1")
    told = measured(case).metrics["note"]
    sizes = [float(size.split(" ")[0]) for size in told.split(": ")[1].split(", ")]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 8 * sizes[0]
    squares = iter(Times((size**2,)) for size in sizes)
    monkeypatch.setattr(cost, "time_of", lambda *_, **__: next(squares))
    found = measured(case)
    assert found.metrics["value"] == pytest.approx(2, abs=0.1)
    assert not found.good
