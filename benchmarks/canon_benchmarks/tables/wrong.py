"""P-values of wrong keys: one row for every scheme."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.document import Block, Paragraph, Table
from canon_benchmarks.measures.wrong import LEVELS
from canon_benchmarks.tables.hidden import not_measured


def wrong_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """The table."""
    yield Paragraph(
        "Columns of levels: the share of keys whose p-value is at most that, and in brackets that of the plain "
        "binomial p-value without controls. *Void*: keys that say their message to controls as well. *Distance*: by "
        "how much the p-values lie below uniform ones (Kolmogorov and Smirnov, one-sided), with the p-value of that "
        "test."
    )
    levels = [f"{level:g}" for level in LEVELS]
    rows = []
    for record in (record for record in records if record.outcome == "done"):
        found = record.metrics
        plain = found["share_at_most_without_controls"]
        shares = [f"{found['share_at_most'][level]:.4f} ({plain[level]:.4f})" for level in levels]
        test = f"{found['distance']:.4f}, {found['test_p_value']:.2g}"
        figures = (str(found["keys"]), str(found["void"]), f"{found['smallest']:.2g}", *shares, test)
        rows.append((record.case.scheme, record.case.keys, *figures))
    yield Table.of(("scheme", "keys", "how many", "void", "smallest", *levels, "distance"), rows)
    yield from not_measured(records)
