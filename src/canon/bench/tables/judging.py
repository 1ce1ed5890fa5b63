"""What a page says of a record beyond its own figures: today's bar, widths that were told, certificates by detour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from canon.bench.cases import Baseline, Recovery, Runtime, Tolerance, Training
from canon.bench.measures.training import reaches_the_bar
from canon.bench.records import Record
from canon.bench.suite import CANON_METHODS

CANONICAL: Final = "°"
"""Ends a cell whose certificate holds on canonical forms only."""


def judged(record: Record) -> Record:
    """The record by today's bar: a bar for training may have risen since it was measured."""
    if not isinstance(record.case, Training) or record.outcome != "done":
        return record
    return replace(record, metrics={**record.metrics, "good": reaches_the_bar(record.case, record.metrics)})


def canonical_only(record: Record) -> bool:
    """Whether Tier 1 passes on canonical forms alone, not on the models themselves."""
    return record.metrics.get("tier1_canonical") is True and record.metrics.get("tier1_passed") is True


def passes(records: Sequence[Record]) -> str:
    """How many pass Tier 1 on the models themselves, of how many; what passes on canonical forms alone stands apart.

    >>> passes([])
    '0/0'
    """
    measured = [record for record in records if record.metrics.get("tier1_passed") is not None]
    apart = sum(map(canonical_only, measured))
    right = sum(record.metrics["tier1_passed"] is True for record in measured) - apart
    return f"{right}/{len(measured)}" + (f" +{apart}{CANONICAL}" if apart else "")


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
