"""What tests of kinds of cases share."""

from __future__ import annotations

from pathlib import Path

from canon.bench.cases import Case
from canon.bench.lab import Setup
from canon.bench.measures import measure
from canon.bench.records import Record, Store
from canon.bench.suite import Suite, load_suite
from canon.bench.tables import suite_page
from canon.bench.tables.document import markdown

RESULTS = Path(__file__).parents[2] / "docs" / "results"


def measured(case: Case, cache: Path = Path("nothing is trained")) -> Record:
    """One case, here."""
    return measure(case, setup=Setup(cache))


def page(*records: Record) -> str:
    """The page of a suite of one's own."""
    return markdown(suite_page(Suite("mine", "Mine", "About it.", tuple(r.case for r in records)), records))


def committed(suite: str) -> list[Record]:
    """The records that are kept with the documentation, in the order of the suite."""
    found = Store.open(RESULTS / "records", suite).records
    return [found[case.name] for case in load_suite(suite).cases if case.name in found]
