"""Where the time of a recovery goes: the functions that take most of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.document import Block, Heading, Table
from canon_benchmarks.tables.hidden import not_measured


def profiled_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """A table for every case."""
    for record in (record for record in records if record.outcome == "done"):
        case, found = record.case, record.metrics
        yield Heading(f"{case.model}, {case.attack}, ρ = {case.ratio:g}: {found['recover']} s without the profiler")
        rows = [
            (f"{own:.3f}", f"{whole:.3f}", str(calls), f"`{name}`") for name, calls, own, whole in found["functions"]
        ]
        yield Table.of(("own seconds", "with what it calls", "calls", "function"), rows)
    yield from not_measured(records)
