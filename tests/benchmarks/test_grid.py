"""Records of a grid can be continued."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from canon.errors import BenchError
from canon_benchmarks.grid import GridFile, Record, run_cases


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
