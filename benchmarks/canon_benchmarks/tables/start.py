"""A common start, or theft: one row for everybody around an owner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.document import Block, Paragraph, Table
from canon_benchmarks.measures.start import FIGURES
from canon_benchmarks.tables.hidden import not_measured

HEAD = (
    "network", "optimiser", "who", "by the model", "changed", "shared", "added", "apart", "by the robust key", "apart",
    "ancestor given",
)  # fmt: skip


def start_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """The table."""
    yield Paragraph(
        "*Changed*: squares of the difference of rows, relative to the rows. *Shared*: part of it in directions that "
        "many rows share. *Added*: what it adds there to the owner's rows. *Apart*: what is shared of the difference, "
        "relative to what is shared of the owner's rows."
    )
    rows = []
    for record in (record for record in records if record.outcome == "done"):
        for row in record.metrics["everybody"]:
            told, key = row["model"], row["robust key"]
            figures = [f"{told[name]:.4f}" if name in told else "" for name in FIGURES]
            apart = f"{key['learned']:.4f}" if "learned" in key else ""
            aware = f"{told['with_ancestor']}, {told['updates']:.2f}" if "updates" in told else ""
            who = (record.case.network, record.case.optimiser, row["who"])
            rows.append((*who, told["answer"], *figures, key["answer"], apart, aware))
    yield Table.of(HEAD, rows)
    yield from not_measured(records)
