"""Micro-benchmarks: medians, the table, and the budget of a trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from canon_benchmarks import speed as command
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
