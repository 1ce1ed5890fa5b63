"""Times of all steps, ratios to their yardsticks, the tables, and how cost grows."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch

from canon_benchmarks import performance_table, scale
from canon_benchmarks.clock import Timed, Times, peak_extra_bytes, times_of
from canon_benchmarks.performance import FOUR, LIMITS, Case, cases, measure, ratios

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


def test_a_full_run_has_every_attack() -> None:
    assert len(cases(full=True)) == 4 * 5 * 2 + 1
    assert len(cases(["densenet121"], full=False)) == 4
    assert cases(["resnet18"], full=False)[-1] == Case("resnet18", FOUR, 0.5)


def test_a_case_is_measured_and_shown(tmp_path: Path) -> None:
    pytest.importorskip("torch_pruning")
    record = measure(Case("squeezenet1_1", "nso_zero", 0.2), repeats=1, probe=0)
    assert record["parameters"]["recovered"] == record["parameters"]["clean"] < record["parameters"]["attacked"]
    assert set(record["seconds"]) == {*SECONDS, "pruning"}
    document = {
        "environment": {"machine": "a machine", "torch": "2", "python": "3", "threads": 1, "measured_on": "cpu"},
        "cases": [record],
    }
    (tmp_path / "records.json").write_text(json.dumps(document), encoding="utf-8")
    page = tmp_path / "page.md"
    assert performance_table.main([str(tmp_path / "records.json"), "--out", str(page)]) == 0
    assert "squeezenet1_1 | nso_zero | 0.2" in page.read_text(encoding="utf-8")


def test_what_is_over_its_limit_is_marked() -> None:
    record = {
        "model": "m", "variant": "v", "ratio": 0.2, "expanded_kernels": False, "parameters": {"attacked": 10**7},
        "device": "cpu",
        "seconds": {"recover": Times((1.0, 2.0, 4.0)).record()},
        "ratios": {"trace_and_clone": LIMITS["trace_and_clone"] + 1, "memory": 0.6},
    }  # fmt: skip
    shown = performance_table.ratio_rows([record])[1]
    assert shown[:4] == ["m", "v", "0.2", "10 M*"]
    assert shown[4:] == ["6.00 OVER", "0.60"]
    largest = performance_table.ratio_rows([{**record, "variant": FOUR}])[1]
    assert largest[4:] == ["6.00 OVER", "0.60 OVER"]
    assert performance_table.ratio_rows([{**record, "device": "cuda"}])[1][4:] == ["6.00", "0.60"]
    assert "2.000 ±75%" in performance_table.seconds_rows([record])[1]


def test_the_slope_of_a_power_is_its_exponent() -> None:
    records = [{"family": "wide convolutions", "parameters": n, "seconds": 1e-9 * n**1.5} for n in (1e6, 1e7, 1e8)]
    assert scale.slopes(records) == {"wide convolutions": 1.5, "all": 1.5}


def test_scale_writes_records_and_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "scale.json"
    family = ["--families", "wide linear layers"]
    scale.main(["--sizes", "2e4", "5e4", *family, "--out", str(out)])
    records = json.loads(out.read_text(encoding="utf-8"))["records"]
    assert all(record["clean_shapes"] for record in records)
    assert out.with_suffix(".svg").read_text(encoding="utf-8").count("<svg") == 1
