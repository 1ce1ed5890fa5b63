"""What the pages about disguised networks with random weights share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.common import attacks_of, by, distinct, values_of
from canon.bench.tables.document import Block, Heading, Items, Paragraph, Table

Cells = Callable[[Sequence[Record]], Sequence[str]]


def rows_by_model(head: Sequence[str], records: Sequence[Record], cells: Cells) -> Table:
    """A row for every model and ratio; where all its attacks were refused, the row says so."""
    rows = []
    for model, ratio in distinct((record.case.model, record.case.ratio) for record in records):
        found = [record for record in by(records, model=model, ratio=ratio) if record.outcome != "refused"]
        rows.append((model, f"{ratio:g}", *(cells(found) if found else ["refused", *[""] * (len(head) - 1)])))
    return Table.of(("model", "ρ", *head), rows)


def table_by_attack(records: Sequence[Record], metric: str) -> Table:
    """By attack, how many cases are good and the largest value of a metric."""

    def cell(found: Sequence[Record]) -> str:
        done = [record for record in found if record.outcome != "refused"]
        if not done:
            return "refused" if found else ""
        largest = max(values_of(done, metric), default=float("nan"))
        refused = f", {len(found) - len(done)} refused" if len(found) > len(done) else ""
        return f"{sum(record.good for record in done)}/{len(done)}, {largest:.0e}{refused}"

    attacks = attacks_of(records)
    rows = [
        (model, f"{ratio:g}", *(cell(by(records, model=model, ratio=ratio, attack=attack)) for attack in attacks))
        for model, ratio in distinct((record.case.model, record.case.ratio) for record in records)
    ]
    return Table.of(("model", "ρ", *attacks), rows)


def good_of(records: Sequence[Record]) -> str:
    """How many came out as they should, of how many."""
    return f"{sum(record.good for record in records)}/{len(records)}"


def largest(records: Sequence[Record], metric: str) -> str:
    """The largest value of a metric."""
    return f"{max(values_of(records, metric)):.1e}"


def kernels(records: Sequence[Record]) -> Iterator[Block]:
    """How many were attacked without expanded kernels, where some were."""
    if plain := sum(record.metrics.get("kernels") == "not expanded" for record in records):
        yield Paragraph(f"{plain} were attacked without expanded kernels, which would have passed 10⁹ parameters.")


def not_measured(records: Sequence[Record]) -> Iterator[Block]:
    """What was refused or failed, and why."""
    if lines := [f"`{record.case.name}`: {record.error}" for record in records if record.outcome != "done"]:
        yield Heading("Refused or failed")
        yield Items(tuple(lines))
