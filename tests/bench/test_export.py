"""Records in other people's tools."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas
import pytest

from canon.bench.export import export
from canon.bench.records import Store
from canon.errors import BenchError, CanonError, MissingExtraError
from canon_benchmarks.mlflow import log_to_mlflow
from tests.bench.samples import records


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = Store.open(tmp_path / "records", "mine")
    for record in records():
        store.add(record)
    store.pack()
    return tmp_path / "records"


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_one_row_for_every_case(folder: Path, tmp_path: Path, suffix: str) -> None:
    target = tmp_path / f"table{suffix}"
    assert export(folder, target) == 5
    table = pandas.read_parquet(target) if suffix == ".parquet" else pandas.read_csv(target)
    assert list(table.columns[:6]) == ["suite", "name", "kind", "dataset", "model", "scheme"]
    table = table.set_index("name")
    row = table.loc["recovery-mnist-resnet18-uchida17-0-nso_zero-0.2-0-camouflage"]
    assert row["metric.attacked_similarity"] == 0.5312
    assert row["seconds.recover"] == 1.5
    assert row["environment.device"] == "cpu"
    assert sorted(table["outcome"]) == ["done", "done", "done", "failed", "refused"]
    with pytest.raises(CanonError, match="exists already"):
        export(folder, target)


def test_what_cannot_be_exported(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BenchError, match=r"no table format '\.xlsx'"):
        export(folder, tmp_path / "table.xlsx")
    with pytest.raises(BenchError, match="'paper' has no records"):
        export(folder, tmp_path / "table.csv", ["paper"])
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"canon-nso\[bench\]"):
        export(folder, tmp_path / "table.csv")
    assert not (tmp_path / "table.csv").exists()


class FakeMlflow:
    """As much of MLflow as is called."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self._experiment = ""

    def set_experiment(self, name: str) -> SimpleNamespace:
        self._experiment = name
        return SimpleNamespace(experiment_id=name)

    def search_runs(self, ids: list[str], *, filter_string: str, output_format: str) -> list[dict[str, Any]]:
        assert output_format == "list"
        wanted = filter_string.removeprefix("attributes.run_name = ").strip("'")
        return [run for run in self.runs if run["experiment"] in ids and run["name"] == wanted]

    @contextmanager
    def start_run(self, *, run_name: str) -> Iterator[None]:
        self.runs.append({"experiment": self._experiment, "name": run_name, "metrics": {}})
        yield

    def log_params(self, values: dict[str, Any]) -> None:
        self.runs[-1]["params"] = values

    def log_metrics(self, values: dict[str, float]) -> None:
        assert all(type(value) is float for value in values.values())
        self.runs[-1]["metrics"] |= values

    def set_tags(self, values: dict[str, str]) -> None:
        assert all(type(value) is str for value in values.values())
        self.runs[-1]["tags"] = values


def test_mlflow(folder: Path) -> None:
    fake = FakeMlflow()
    assert log_to_mlflow(folder, mlflow=fake) == 5
    run = next(run for run in fake.runs if "nso_zero" in run["name"])
    assert run["experiment"] == "canon-mine"
    assert run["params"]["scheme"] == "uchida17"
    assert run["metrics"]["attacked_similarity"] == 0.5312
    assert run["metrics"]["tier1_passed"] == 1.0
    assert run["metrics"]["seconds.recover"] == 1.5
    assert run["tags"]["verdict"] == "proved, tier 1"
    assert run["tags"]["outcome"] == "done"
    assert log_to_mlflow(folder, mlflow=fake) == 0, "nothing is logged twice"


def test_mlflow_is_not_needed_until_it_is_asked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingExtraError, match=r"canon-nso\[mlflow\]"):
        log_to_mlflow(folder)
