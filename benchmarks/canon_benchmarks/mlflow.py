"""Records as MLflow runs."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from canon.bench.export import read_all
from canon.bench.records import Record
from canon.errors import MissingExtraError


def log_to_mlflow(folder: Path, suites: Iterable[str] = (), *, mlflow: Any = None) -> int:
    """Log every record as a run of the experiment `canon-SUITE`; returns the number of runs.

    The case's fields become parameters, numbers metrics, everything else tags. Where runs go is MLflow's own affair
    (`MLFLOW_TRACKING_URI`). A record that has been logged is not logged again.
    """
    if mlflow is None:
        try:
            mlflow = importlib.import_module("mlflow")
        except ModuleNotFoundError as error:
            raise MissingExtraError("mlflow", "mlflow") from error
    logged = 0
    for suite, record in read_all(folder, suites):
        experiment = mlflow.set_experiment(f"canon-{suite}")
        known = mlflow.search_runs([experiment.experiment_id], filter_string=_same(record), output_format="list")
        if known:
            continue
        with mlflow.start_run(run_name=record.case.name):
            _log(mlflow, record)
        logged += 1
    return logged


def _same(record: Record) -> str:
    return f"attributes.run_name = '{record.case.name}'"


def _log(mlflow: Any, record: Record) -> None:
    mlflow.log_params(record.case.values)
    numbers = {name: value for name, value in record.metrics.items() if isinstance(value, int | float)}
    mlflow.log_metrics({name: float(value) for name, value in numbers.items()})
    mlflow.log_metrics({f"seconds.{name}": value for name, value in record.seconds.items()})
    rest = {name: str(value) for name, value in record.metrics.items() if name not in numbers}
    mlflow.set_tags({"outcome": record.outcome, "error": record.error or "", **rest, **record.environment})
