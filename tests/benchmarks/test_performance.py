"""Times of all steps, ratios to their yardsticks, the tables, and how cost grows."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from canon.bench.records import Record
from canon_benchmarks.cases import FOUR, Scale, Speed
from canon_benchmarks.measures import speed
from canon_benchmarks.measures.clock import Timed, Times, peak_extra_bytes, times_of
from canon_benchmarks.measures.speed import LIMITS, ratios
from canon_benchmarks.tables.scale import slopes_of
from tests.bench.samples import ENVIRONMENT
from tests.benchmarks.measured import measured, page

SECONDS = {"trace": 0.1, "clone": 0.1, "attack": 0.4, "forward": 0.5, "recover": 0.8, "align": 0.3, "certify": 0.4}


def test_steps_take_turns_and_neither_what_warms_up_nor_what_is_prepared_counts() -> None:
    calls: list[str] = []
    steps = {
        "a": Timed(partial(calls.append, "a"), large=True),
        "b": Timed(partial(calls.append, "b"), prepare=partial(calls.append, "prepare b")),
        "slow": Timed(partial(calls.append, "slow"), rounds=1),
    }
    times = times_of(steps, repeats=2, device="cpu")
    fast = ["a", "a", "prepare b", "b"]
    assert calls == [*fast, "slow", *fast]
    assert {name: len(found.runs) for name, found in times.items()} == {"a": 2, "b": 2, "slow": 1}


def test_a_peak_is_seen_though_the_memory_is_given_back() -> None:
    size = 64 << 20
    extra = peak_extra_bytes(lambda: torch.ones(size // 4).sum(), "cpu")
    assert extra is None or 0.5 * size < extra < 2 * size


def test_ratios_are_those_of_the_same_run() -> None:
    found = ratios({**SECONDS, "probe": 8.0}, 50, 100)
    assert found["trace_and_clone"] == 4.0
    assert found["probe"] == 0.1
    assert found["verify"] == 0.5
    assert found["align_and_certify"] == 0.875
    assert found["memory"] == 0.5
    assert "pruning" not in found
    assert "memory" not in ratios(SECONDS, None, 100)


def test_a_case_is_measured_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch_pruning")
    monkeypatch.setattr(speed, "REPEATS", 1)
    found = measured(Speed(model="squeezenet1_1", attack="nso_zero", probe=0))
    sizes = found.metrics["parameters"]
    assert sizes["recovered"] == sizes["clean"] < sizes["attacked"]
    assert set(found.metrics["seconds"]) == {*SECONDS, "pruning"}
    assert "| squeezenet1_1 | nso_zero | 0.2 |" in page(found)


def test_what_is_over_its_limit_is_marked() -> None:
    found: dict[str, Any] = {
        "expanded_kernels": False, "parameters": {"attacked": 10**7}, "device": "cpu", "threads": 1,
        "seconds": {"recover": Times((1.0, 2.0, 4.0)).record()},
        "ratios": {"trace_and_clone": LIMITS["trace_and_clone"] + 1, "memory": 0.6},
    }  # fmt: skip

    def shown(attack: str, **changed: Any) -> str:
        return page(Record(Speed(model="m", attack=attack), "done", found | changed, {}, ENVIRONMENT))

    assert "| m | nso_zero | 0.2 | 10 M* | 6.00 OVER | 0.60 |" in shown("nso_zero")
    assert "| m | nso_zero | 0.2 | 10 M* |  |  |  | 2.000 ±75% |" in shown("nso_zero")
    assert f"| m | {FOUR} | 0.2 | 10 M* | 6.00 OVER | 0.60 OVER |" in shown(FOUR)
    assert "10 M* | 6.00 | 0.60 |" in shown("nso_zero", device="cuda")


def test_the_slope_of_a_power_is_its_exponent() -> None:
    records = [
        Record(Scale(step="recover", size=n, family="wide convolutions"), "done",
               {"parameters": n, "seconds": 1e-9 * n**1.5})
        for n in (1e6, 1e7, 1e8)
    ]  # fmt: skip
    assert slopes_of(records) == {"wide convolutions": 1.5, "all": 1.5}


def test_scale_has_a_page() -> None:
    pytest.importorskip("matplotlib")
    found = [measured(Scale(step="recover", size=size, family="wide linear layers")) for size in (2e4, 5e4)]
    assert all(record.good for record in found), [record.error for record in found]
    assert "| wide linear layers | " in page(*found)
