"""Micro-benchmarks: medians, the table, and the budget of a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from canon_benchmarks import attack_time
from canon_benchmarks import speed as command
from canon_benchmarks.attack_time import measure_attack, measure_growth
from canon_benchmarks.clock import Times
from canon_benchmarks.micro import Measurement, table
from canon_benchmarks.trace import measure_trace


def test_a_value_over_its_limit_is_said_to_be() -> None:
    found = [Measurement("trace", 4.0, "x", limit=3.0), Measurement("other", 0.5, "s")]
    assert not found[0].within
    assert found[1].within
    lines = [line.split() for line in table(found).splitlines()]
    assert lines[1] == ["trace", "4", "x", "3", "x", "OVER"]
    assert lines[2] == ["other", "0.5", "s"]


def test_the_command_prints_saves_and_judges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for value, status in ((1.0, 0), (9.0, 1)):
        measurement = Measurement("trace", value, "x", limit=3.0)
        monkeypatch.setattr(command, "MEASUREMENTS", (lambda measurement=measurement: measurement,))
        assert command.main(["--only", "micro", "--out", str(tmp_path / "runs")]) == status
        assert "trace" in capsys.readouterr().out
        saved = json.loads((tmp_path / "runs" / "micro.json").read_text(encoding="utf-8"))
        assert saved["measurements"][0]["within"] is (status == 0)


def test_a_trace_keeps_its_budget() -> None:
    measured = measure_trace("resnet18", repeats=3)
    assert measured.within, measured.note


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
