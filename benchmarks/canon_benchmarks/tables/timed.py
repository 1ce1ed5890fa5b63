"""Time and memory: a page for each kind of case but `speed`, `runtime` and `scale`, which have files of their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from canon.bench.records import Record
from canon.bench.tables.common import complaints, groups, measured
from canon.bench.tables.document import BAD, Block, Heading, Paragraph, Table
from canon_benchmarks.tables.grids import one_by_one


def cost_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Small measurements and their limits; what passes its limit is marked."""

    def row(case: Any, found: Any) -> tuple[str, ...]:
        bare = case.what in ("trace", "growth", "training")
        name = f"{case.what} {case.model}" + ("" if bare else f" {case.attack} {case.ratio:g}")
        limit = "" if found["limit"] is None else f"{found['limit']:g}"
        value = f"{found['value']:.2f}" + ("" if found.get("good", True) else f" {BAD}")
        return name, value, limit, found["note"]

    return one_by_one(("measurement", "value", "limit", ""), records, row)


def profiled_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Where the time of a recovery goes: a table of functions for every case."""
    for record in measured(records):
        case, found = record.case, record.metrics
        yield Heading(f"{case.model}, {case.attack}, ρ = {case.ratio:g}: {found['recover']} s without the profiler")
        rows = [
            (f"{own:.3f}", f"{whole:.3f}", str(calls), f"`{name}`") for name, calls, own, whole in found["functions"]
        ]
        yield Table.of(("own seconds", "with what it calls", "calls", "function"), rows)
    yield from complaints(records)


LARGE: Final = ("Command", "Seconds", "of the processor", "One reading", "Readings", "Processor", "Memory", "Exit")


def large_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Commands on large checkpoints: what the columns mean, and a table for every size."""
    yield Paragraph(
        "*Memory* is what belongs to the process alone; pages of mapped files are not counted. *Readings*: seconds, "
        "start of Python included, in units of reading and summing once all shards that the command was given, taken "
        "right before and right after it. *Processor* is the same in seconds of the processor, for command and "
        "reading: where other work runs on the machine, as it did here, that is the fairer number. *One reading* is "
        "what that was, in seconds of the processor: it is not the same in every row, since summing makes copies in "
        "float32, for which the system has large pages to give or not. Rows were measured one by one, some before the "
        "last changes of the code."
    )
    for (size,), mine in groups(measured(records), "size"):
        found = mine[-1].metrics
        yield Heading(f"{size}: {found['bytes'] / 1e9:.1f} GB in {found['files']} files")
        yield Table.of(LARGE, [_command(record.case.command, record.metrics) for record in mine])


def _command(command: str, found: Any) -> tuple[str, ...]:
    reading = found["processor"] / found["processor_readings"]
    numbers = (found["seconds"], found["processor"], reading, found["readings"], found["processor_readings"])
    return command, *(f"{number:.1f}" for number in numbers), f"{found['peak'] / 1e9:.2f} GB", str(found["exit_code"])
