"""To whom an extractor of riga21 says its message: one row for every weight."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.common import by, distinct
from canon.bench.tables.document import Block, Paragraph, Table

HEAD = (
    "weight of unmarked vectors", "own model", "own, recovered alone", "strangers", "untrained networks",
    "strangers that read 0.85 or more",
)  # fmt: skip


def extractor_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """What it means, and the table."""
    yield Paragraph(
        f"Small networks on the digits, three seeds, the same four strangers for each ([{suite}]({suite}.md)). With a "
        "weight of 0 the extractor never sees an unmarked vector: it then reads the message after recovery alone, "
        "wherever channels lie, and from most strangers, or its very opposite. The paper's Tier 2 of riga21 looks "
        "like that; whether it has that cause is not known. With the weight that we use, 10, nobody but the owner's "
        "own model reads it."
    )
    rows = []
    for weight in distinct(record.case.weight for record in records):
        part = [record.metrics for record in by(records, weight=weight) if record.outcome == "done"]
        own = [[found[name] for found in part] for name in ("own", "recovered_alone")]
        others = [[value for found in part for value in found[name]] for name in ("strangers", "untrained")]
        high = f"{sum(value >= 0.85 for value in others[0])}/{len(others[0])}"
        rows.append((f"{weight:g}", *map(span, own + others), high))
    yield Table.of(HEAD, rows)


def span(values: Iterable[float]) -> str:
    """Smallest, largest and mean.

    >>> span([0.25, 0.75])
    '0.25 to 0.75, 0.50 on average'
    """
    given = list(values)
    return f"{min(given):.2f} to {max(given):.2f}, {statistics.fmean(given):.2f} on average"
