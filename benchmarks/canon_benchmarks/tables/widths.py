"""Which records were made when recovery was told the clean widths."""

from __future__ import annotations

from collections.abc import Sequence

from canon.bench.cases import Recovery
from canon.bench.records import Record
from canon_benchmarks.cases import CANON_METHODS, Baseline, Runtime, Tolerance


def told_widths(record: Record) -> bool:
    """Whether recovery was told the clean widths: records say so since it no longer is."""
    case = record.case
    ours = isinstance(case, Recovery | Tolerance | Runtime) or (
        isinstance(case, Baseline) and case.method in CANON_METHODS
    )
    return ours and record.outcome == "done" and record.metrics.get("widths_given") is not False


def widths_remark(records: Sequence[Record]) -> str | None:
    """The first line of a page whose records used the clean widths."""
    told = sum(map(told_widths, records))
    if not told:
        return None
    return (
        f"**Recovery was told the clean widths in {told} of {len(records)} records here**: it knew from the owner how "
        "many channels each layer should have. Records that are made now are told nothing."
    )
