"""The grid keeps records, continues where it stopped, and sees an attack that changes the function."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from canon import zoo
from canon.attacks import attack_with
from canon_benchmarks import attack_grid, attack_time
from canon_benchmarks.attack_grid import Case, cases, load, main, run_grid
from canon_benchmarks.attack_time import measure_attack, measure_growth
from canon_benchmarks.clock import Times

CASE = Case("squeezenet1_1", "nso_zero", 0.2, "float32", expand_kernels=True)


def test_all_combinations() -> None:
    found = list(cases(attack_grid.MODELS, attack_grid.VARIANTS, attack_grid.RATIOS, attack_grid.TOLERANCES))
    assert len(set(found)) == len(found) == 13 * 5 * 3 * 2


@pytest.mark.parametrize("name", ["convnext_tiny", "vit_b_16"])
def test_no_layer_is_multiplied_by_nothing(name: str) -> None:
    model = zoo.model(name)

    def empty() -> list[str]:
        weights = [(key, value.detach()) for key, value in model.named_parameters() if value.ndim > 1]
        return [key for key, value in weights if float(value.abs().max()) < 1e-3]

    assert empty(), "the zoo's models begin with layers that do nothing"
    attack_grid.fill_empty_weights(model)
    assert not empty()


def test_a_slice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "grid.json"
    arguments = ["--models", "squeezenet1_1", "--variants", "nso_zero", "nso_clique", "--ratios", "0.2"]
    assert main([*arguments, "--out", str(out), "--threads", str(torch.get_num_threads())]) == 0
    records = load(out)
    assert {record.status for record in records} == {"same"}
    assert len(records) == 4
    assert "4 cases: 0 different, 0 refused" in capsys.readouterr().out


def test_finished_cases_are_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run_grid([CASE], tmp_path / "grid.json", "cpu", 10**9, print)
    monkeypatch.setattr(attack_grid, "run_case", lambda *_: pytest.fail("the case was run again"))
    assert run_grid([CASE], tmp_path / "grid.json", "cpu", 10**9, print) == first


def test_records_of_other_runs_are_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.json"
    first = run_grid([CASE], other, "cpu", 10**9, print)
    monkeypatch.setattr(attack_grid, "run_case", lambda *_: pytest.fail("the case was run again"))
    arguments = ["--models", CASE.model, "--variants", CASE.variant, "--ratios", "0.2", "--dtypes", CASE.dtype]
    out = tmp_path / "grid.json"
    threads = str(torch.get_num_threads())
    assert main([*arguments, "--out", str(out), "--merge", str(other), "--threads", threads]) == 0
    assert load(out) == first


def test_what_is_too_large_is_refused_and_tried_without_growing_kernels(tmp_path: Path) -> None:
    records = run_grid([CASE], tmp_path / "grid.json", "cpu", 2_000_000, print)
    assert [(record.case.expand_kernels, record.status) for record in records] == [(True, "refused"), (False, "same")]
    assert "4,454,386 parameters" in records[0].reason
    again = run_grid([CASE], tmp_path / "grid.json", "cpu", 10**9, print)
    assert [record.status for record in again] == ["same", "same"]


def test_a_changed_function_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(*arguments: object) -> object:
        result = attack_with(*arguments)  # type: ignore[arg-type]
        parameter = next(result.model.parameters())
        parameter.data *= 1.01
        return result

    monkeypatch.setattr(attack_grid, "attack_with", spoiled)
    assert main(["--models", "squeezenet1_1", "--variants", "nso_zero", "--ratios", "0.2", "--dtypes", "float32",
                 "--out", str(tmp_path / "grid.json"), "--threads", str(torch.get_num_threads())]) == 1  # fmt: skip


def test_the_time_of_an_attack_is_measured_beside_a_copy() -> None:
    found = measure_attack("squeezenet1_1", "nso_zero", repeats=1)
    assert found.value > 0
    assert found.limit == 5
    assert "clone" in found.note


def test_the_growth_of_an_attack_s_time_is_a_slope_over_the_bytes_it_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [float(s.split(" ")[0]) for s in measure_growth("squeezenet1_1", repeats=1).note.split(": ")[1].split(", ")]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 8 * sizes[0]
    squares = iter(Times((size**2,)) for size in sizes)
    monkeypatch.setattr(attack_time, "time_of", lambda *_, **__: next(squares))
    found = measure_growth("squeezenet1_1")
    assert found.value == pytest.approx(2, abs=0.1)
    assert not found.within
