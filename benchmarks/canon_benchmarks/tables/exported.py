"""Hidden models through the tools that make ONNX files: a row for every way, a column for every model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.common import distinct, one
from canon.bench.tables.document import Block, Paragraph, Table
from canon_benchmarks.tables.hidden import not_measured


def exported_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """What is answered of every file."""
    models = distinct(record.case.model for record in records)
    yield Paragraph(
        "Each cell has the answer to *same network?* by the reference and by the layout key; a dot: the file's outputs "
        "are not shown to be those of the reference, as rounding to int8 changes them; empty: not measured, which says "
        "nothing. Rows were measured while the code still changed."
    )
    rows = []
    for exporter, norms, then in distinct((r.case.exporter, r.case.norms, r.case.then) for r in records):
        found = [one(records, model=model, exporter=exporter, norms=norms, then=then) for model in models]
        rows.append((exporter, norms, then, *map(_cell, found)))
    yield Table.of(("exporter", "norms", "then", *models), rows)
    yield from not_measured(records)


def _cell(record: Record | None) -> str:
    if record is None or record.outcome != "done":
        return "" if record is None else f"**{record.outcome}**"
    by_reference, by_key = (record.metrics[way]["network"] for way in ("reference", "key"))
    changed = " ·" if record.metrics["reference"]["function"] != "agree" else ""
    return f"{by_reference if by_reference == by_key else f'{by_reference}, {by_key}'}{changed}"
