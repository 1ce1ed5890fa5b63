"""Commands on large checkpoints: a table for every size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from canon.bench.records import Record
from canon.bench.tables.common import by, distinct
from canon.bench.tables.document import Block, Heading, Paragraph, Table

HEAD = ("Command", "Seconds", "of the processor", "One reading", "Readings", "Processor", "Memory", "Exit")


def large_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """What the columns mean, and the tables."""
    yield Paragraph(
        "*Memory* is what belongs to the process alone; pages of mapped files are not counted. *Readings*: seconds, "
        "start of Python included, in units of reading and summing once all shards that the command was given, taken "
        "right before and right after it. *Processor* is the same in seconds of the processor, for command and "
        "reading: where other work runs on the machine, as it did here, that is the fairer number. *One reading* is "
        "what that was, in seconds of the processor: it is not the same in every row, since summing makes copies in "
        "float32, for which the system has large pages to give or not. Rows were measured one by one, some before the "
        "last changes of the code."
    )
    for size in distinct(record.case.size for record in records):
        mine = [record for record in by(records, size=size) if record.outcome == "done"]
        if mine:
            found = mine[-1].metrics
            yield Heading(f"{size}: {found['bytes'] / 1e9:.1f} GB in {found['files']} files")
            yield Table.of(HEAD, [_row(record.case.command, record.metrics) for record in mine])


def _row(command: str, found: Any) -> tuple[str, ...]:
    reading = found["processor"] / found["processor_readings"]
    numbers = (found["seconds"], found["processor"], reading, found["readings"], found["processor_readings"])
    return command, *(f"{number:.1f}" for number in numbers), f"{found['peak'] / 1e9:.2f} GB", str(found["exit_code"])
