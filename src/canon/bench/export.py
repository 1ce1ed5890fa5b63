"""Records for people's own tools: one table in Parquet or CSV."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from canon._files import atomic_path, check_output
from canon.bench.extensions import kinds, part_of
from canon.bench.records import Record, stores_of
from canon.errors import BenchError, import_extra

FORMATS: Final = (".parquet", ".csv")
"""By suffix."""


def row(suite: str, record: Record) -> dict[str, Any]:
    """A record as one row: the case's fields, `metric.*`, `seconds.*` and `environment.*`."""
    flat: dict[str, Any] = {"suite": suite, "name": record.case.name, "outcome": record.outcome, "error": record.error}
    flat |= record.case.values
    for prefix, values in (
        ("metric", record.metrics),
        ("seconds", record.seconds),
        ("environment", record.environment),
    ):
        flat |= {f"{prefix}.{name}": _cell(value) for name, value in values.items()}
    return flat


def _cell(value: Any) -> Any:
    """A value that one cell can hold: what has parts within parts becomes JSON."""
    nested = isinstance(value, dict) or (isinstance(value, list) and any(isinstance(p, list | dict) for p in value))
    return json.dumps(value) if nested else value


def export(folder: Path, target: Path, suites: Iterable[str] = (), *, force: bool = False) -> int:
    """Write all records as one table, in the format that the suffix of `target` says; returns the number of rows."""
    if target.suffix not in FORMATS:
        raise BenchError(f"no table format '{target.suffix}'", where=str(target), hint=f"Use {' or '.join(FORMATS)}")
    check_output(target, force=force)
    pandas = import_extra("pandas", "bench")
    if target.suffix == ".parquet":
        import_extra("pyarrow", "bench")
    rows = [row(store.suite, record) for store in stores_of(folder, suites) for record in store.records.values()]
    if not rows:
        raise BenchError("there are no records", where=str(folder))
    table = pandas.DataFrame(rows, columns=_columns(rows))
    with atomic_path(target, force=force) as path:
        if target.suffix == ".parquet":
            table.to_parquet(path, index=False)
        else:
            table.to_csv(path, index=False)
    return len(rows)


def _columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Every column that some row has: what names a case first, the rest in order."""
    of_cases = dict.fromkeys(field.name for kind in kinds() for field in fields(part_of(kind, "case")))
    first = ["suite", "name", "kind", *of_cases]
    present = dict.fromkeys(name for row in rows for name in row)
    return [name for name in first if name in present] + sorted(present.keys() - set(first))
