"""The recovery grid and the noise curve: records that can be continued, tables that say what is in them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import canon
from canon.errors import BenchError
from canon_benchmarks import model_grid, noise_curve, recovery_grid
from canon_benchmarks.grid import GridFile, Record, run_cases
from canon_benchmarks.model_grid import GridCase
from canon_benchmarks.subjects import MODELS, gap, inputs, logits, subject


@dataclass(frozen=True)
class Number:
    value: int


def square(case: Number) -> Record:
    if case.value == 13:
        raise ValueError("unlucky")
    return {"square": case.value**2}


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_records_are_kept_and_continued(tmp_path: Path, jobs: int, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "grid" / "numbers.json"
    store = GridFile.open(path, ["value"])
    assert run_cases([Number(k) for k in (3, 13, 4)], square, store, jobs=jobs) == 1
    assert "failed  {'value': 13}: ValueError: unlucky" in capsys.readouterr().err
    store = GridFile.open(path, ["value"])
    assert {key[0]: record["square"] for key, record in store.records.items()} == {3: 9, 4: 16}
    assert run_cases([Number(k) for k in (3, 4, 5)], square, store) == 0
    assert capsys.readouterr().err.count("square") == 1, "only the new case is run"
    assert [r["value"] for r in json.loads(path.read_text())["records"]] == [3, 4, 5]


def test_time_runs_out(tmp_path: Path) -> None:
    store = GridFile.open(tmp_path / "numbers.json", ["value"])
    assert run_cases([Number(1), Number(2)], square, store, minutes=-1) == 2


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("[1, 2]")
    with pytest.raises(BenchError, match="not one that a grid wrote"):
        GridFile.open(path, ["value"])


def record(**changes: Any) -> Record:
    base = {"model": "resnet18", "variant": "nso_zero", "ratio": 0.2, "seed": 0, "good": True, "gap": 2e-7,
            "recover_seconds": 1.0}  # fmt: skip
    return {**base, **changes}


def test_table_and_summary() -> None:
    left_out = record(seed=2, left_out="too large")
    del left_out["good"]
    records = [
        record(),
        record(seed=1, good=False, gap=3e-2),
        left_out,
        record(variant="mix-opseq", kernels="not expanded"),
    ]
    assert recovery_grid.table(records).splitlines()[2] == "| resnet18 | 0.2 | 1/2, 3e-02, 1 left out | 1/1, 2e-07 |"
    text = recovery_grid.summary(records)
    assert text.startswith("2 of 3 cases are good. 1 were run without expanded kernels")
    assert "1 are left out" in text
    assert "- resnet18, nso_zero, ρ = 0.2, seed 2: too large" in recovery_grid.page(records)


def test_one_case_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "grid.json"
    arguments = ["--models", "squeezenet1_1", "--variants", "mix-opseq", "--ratios", "0.2", "--seeds", "0"]
    assert recovery_grid.main([*arguments, "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith("1 of 1 cases are good.")
    (found,) = json.loads(out.read_text())["records"]
    assert found["shapes"] is True
    assert found["gap"] <= 1e-5
    assert found["recovered"] == found["clean"] < found["attacked"]
    assert "| squeezenet1_1 | 0.2 | 1/1," in out.with_suffix(".md").read_text()


def test_an_attack_that_is_too_large_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(*arguments: Any, **options: Any) -> Any:
        return canon.attack(*arguments, **options, max_parameters=1_000_000)

    monkeypatch.setattr(model_grid, "attack", small)
    found = recovery_grid.measure(GridCase("squeezenet1_1", "nso_zero", 0.2, 0))
    assert "parameters, more than 1,000,000" in found["left_out"]


def test_noise_changes_numbers_and_rounding_does_not_hide_it() -> None:
    model = subject("squeezenet1_1")
    before = model.get_parameter("features.0.weight").detach().clone()
    noisy = noise_curve.disturb(model, "1e-3", 0)
    ratio = noisy.get_parameter("features.0.weight").detach() / before - 1
    assert 0.9e-3 < float(ratio.std()) < 1.1e-3
    half = noise_curve.disturb(model, "float16", 0)
    assert torch.equal(half.get_parameter("features.0.weight"), before.half().float())
    assert torch.equal(model.get_parameter("features.0.weight"), before)


def test_noise_table() -> None:
    records = [
        {"model": "resnet18", "variant": "nso_split", "noise": noise, "seed": 0, "ratio": 0.2, "shapes": good}
        for noise, good in (("1e-6", True), ("1e-2", False), ("float16", True))
    ]
    lines = noise_curve.table(records).splitlines()
    assert lines[0] == "| model | 1e-6 | 1e-2 | float16 |"
    assert lines[2:] == ["| resnet18 | 1/1 | 0/1 | 1/1 |", "| all | 1/1 | 0/1 | 1/1 |"]


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "squeezenet1_1"])
def test_subjects_hide_nothing(name: str) -> None:
    model = subject(name)
    assert all(bool(parameter.any()) for parameter in model.parameters())
    answers = logits(model, inputs(name), torch.float64)
    assert float(answers.std()) > 1e-6
    assert gap(logits(model, inputs(name)), answers) < 1e-4
    assert name in MODELS
