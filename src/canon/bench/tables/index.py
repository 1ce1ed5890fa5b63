"""The first page of a report: an index of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from canon.bench.records import Record
from canon.bench.suite import Suite
from canon.bench.tables.common import CANONICAL, canonical_only
from canon.bench.tables.document import Block, Heading, Items, Page, Paragraph, Table

TITLE: Final = "Results of the benchmark"

Shown = Mapping[str, tuple[Suite, Sequence[Record]]]
"""Suites with their records, by name."""


def first_pages(shown: Shown, missing: Sequence[Suite] | None, beside: Path) -> list[Page]:
    """The pages before those of suites.

    Args:
        shown: Suites that have records.
        missing: Suites that have none; None where the suites to show were named.
        beside: The folder in which the folder of records lies.
    """
    return [Page("README", TITLE, tuple(index_blocks(shown, missing)))]


def index_blocks(
    shown: Shown,
    missing: Sequence[Suite] | None,
    remark: str = "",
    columns: Mapping[str, Callable[[Record], bool]] | None = None,
) -> list[Block]:
    """All suites, with counts of their records; `columns` are counts beside the usual ones."""
    counted = {**(columns or {}), f"canonical forms only {CANONICAL}": canonical_only}
    rows = []
    for name, (suite, records) in shown.items():
        done, refused, failed = (
            sum(r.outcome == outcome for r in records) for outcome in ("done", "refused", "failed")
        )
        bad = sum(not record.good for record in records)
        counts = (bad, refused, failed, *(sum(map(matches, records)) for matches in counted.values()))
        cells = (str(count) if count else "" for count in counts)
        rows.append((f"[{suite.title}]({name}.md)", f"`{name}`", f"{done} of {len(suite.cases)}", *cells))
    head = ("page", "suite", "measured", "not as they should be", "refused", "failed", *counted)
    blocks: list[Block] = [
        Heading("All suites"),
        Paragraph(
            "Refused: the attack would pass 10⁹ parameters, no layer allows it, or training after it did not end in "
            f"finite weights.{remark} A case that failed counts among those that are not as they should be; each page "
            "ends with the list of them, and why."
        ),
        Table.of(head, rows),
    ]
    if missing:
        names = tuple(f"`{suite.name}`: {suite.title}" for suite in missing)
        blocks += [Paragraph("Without records yet:"), Items(names)]
    return blocks
