"""From safetensors through an attack and ONNX, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.document import Block, Table
from canon_benchmarks.tables.hidden import not_measured

HEAD = (
    "model", "norms", "names", "verdict", "worst residual", "layers", "suspect, MB", "recovered, MB", "gap, suspect",
    "gap, recovered",
)  # fmt: skip


def roundtrip_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """One row for every file."""
    yield Table.of(HEAD, [_row(record) for record in records if record.outcome == "done"])
    yield from not_measured(records)


def _row(record: Record) -> tuple[str, ...]:
    case, found = record.case, record.metrics
    sizes = [f"{found[f'{file}_bytes'] / 1e6:.0f}" for file in ("suspect", "recovered")]
    gaps = [f"{found[f'{file}_gap']:.1e}" for file in ("suspect", "recovered")]
    worst = f"{found['max_rel_err']:.1e}"
    return case.model, case.norms, case.names, f"{found['verdict']}", worst, f"{found['layers']}", *sizes, *gaps
