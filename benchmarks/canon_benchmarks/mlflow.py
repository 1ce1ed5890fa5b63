"""Records as MLflow runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from canon.bench.records import Record, stores_of
from canon.errors import import_extra


def log_to_mlflow(folder: Path, suites: Iterable[str] = (), *, mlflow: Any = None) -> int:
    """Log every record as a run of the experiment `canon-SUITE`; returns the number of runs.

    The case's fields become parameters, numbers metrics, everything else tags. Where runs go is MLflow's own affair
    (`MLFLOW_TRACKING_URI`). A record that has been logged is not logged again.
    """
    mlflow = mlflow or import_extra("mlflow", "mlflow")
    logged = 0
    for store in stores_of(folder, suites):
        experiment = mlflow.set_experiment(f"canon-{store.suite}")
        for name, record in store.records.items():
            same = f"attributes.run_name = '{name}'"
            if not mlflow.search_runs([experiment.experiment_id], filter_string=same, output_format="list"):
                with mlflow.start_run(run_name=name):
                    _log(mlflow, record)
                logged += 1
    return logged


def _log(mlflow: Any, record: Record) -> None:
    mlflow.log_params(record.case.values)
    numbers = {name: value for name, value in record.metrics.items() if isinstance(value, int | float)}
    mlflow.log_metrics({name: float(value) for name, value in numbers.items()})
    mlflow.log_metrics({f"seconds.{name}": value for name, value in record.seconds.items()})
    rest = {name: str(value) for name, value in record.metrics.items() if name not in numbers}
    mlflow.set_tags({"outcome": record.outcome, "error": record.error or "", **rest, **record.environment})
