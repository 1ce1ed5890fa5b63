"""A common start, or theft? One row for everybody."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.document import Block, Table
from canon_benchmarks.tables.hidden import not_measured

HEAD = (
    "network", "optimiser", "who", "by the model", "changed", "shared", "added", "by the robust key", "ancestor given",
)  # fmt: skip


def start_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """One row for everybody."""
    yield Table.of(HEAD, [_row(record) for record in records if record.outcome == "done"])
    yield from not_measured(records)


def _row(record: Record) -> list[str]:
    case, found = record.case, record.metrics
    names = [f"model_{name}" for name in ("changed", "shared", "added")]
    figures = [f"{found[name]:.4f}" if name in found else "" for name in names]
    aware = f"{found['model_with_ancestor']}, {found['model_updates']:.2f}" if "model_updates" in found else ""
    answers = [f"{found[f'{way}_answer']}" for way in ("model", "key")]
    return [case.network, case.optimiser, case.who, answers[0], *figures, answers[1], aware]
