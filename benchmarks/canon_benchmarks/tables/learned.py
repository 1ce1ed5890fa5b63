"""Small networks that were trained for a question of their own: a page for each kind of case."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from canon.bench.records import Record
from canon.bench.tables.common import complaints, groups, measured
from canon.bench.tables.document import Block, Paragraph, Table
from canon_benchmarks.measures.start import FIGURES
from canon_benchmarks.measures.wrong import LEVELS
from canon_benchmarks.tables.grids import one_by_one


def start_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """A common start, or theft: one row for everybody around an owner."""
    yield Paragraph(
        "*Changed*: squares of the difference of rows, relative to the rows. *Shared*: part of it in directions that "
        "many rows share. *Added*: what it adds there to the owner's rows. *Apart*: what is shared of the difference, "
        "relative to what is shared of the owner's rows."
    )
    rows = []
    for record in measured(records):
        for row in record.metrics["everybody"]:
            told, key = row["model"], row["robust key"]
            figures = [f"{told[name]:.4f}" if name in told else "" for name in FIGURES]
            apart = f"{key['learned']:.4f}" if "learned" in key else ""
            aware = f"{told['with_ancestor']}, {told['updates']:.2f}" if "updates" in told else ""
            who = (record.case.network, record.case.optimiser, row["who"])
            rows.append((*who, told["answer"], *figures, key["answer"], apart, aware))
    head = (
        "network", "optimiser", "who", "by the model", "changed", "shared", "added", "apart", "by the robust key",
        "apart", "ancestor given",
    )  # fmt: skip
    yield Table.of(head, rows)
    yield from complaints(records)


def wrong_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """P-values of wrong keys: one row for every scheme."""
    levels = [f"{level:g}" for level in LEVELS]

    def row(case: Any, found: Any) -> tuple[str, ...]:
        plain = found["share_at_most_without_controls"]
        shares = [f"{found['share_at_most'][level]:.4f} ({plain[level]:.4f})" for level in levels]
        test = f"{found['distance']:.4f}, {found['test_p_value']:.2g}"
        counts = (str(found["keys"]), str(found["void"]), f"{found['smallest']:.2g}")
        return case.scheme, case.keys, *counts, *shares, test

    yield Paragraph(
        "Columns of levels: the share of keys whose p-value is at most that, and in brackets that of the plain "
        "binomial p-value without controls. *Void*: keys that say their message to controls as well. *Distance*: by "
        "how much the p-values lie below uniform ones (Kolmogorov and Smirnov, one-sided), with the p-value of that "
        "test."
    )
    yield from one_by_one(("scheme", "keys", "how many", "void", "smallest", *levels, "distance"), records, row)


def extractor_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """To whom an extractor of riga21 says its message: what it means, and one row for every weight."""
    yield Paragraph(
        f"Small networks on the digits, three seeds, the same four strangers for each ([{suite}]({suite}.md)). With a "
        "weight of 0 the extractor never sees an unmarked vector: it then reads the message after recovery alone, "
        "wherever channels lie, and from most strangers, or its very opposite. The paper's Tier 2 of riga21 looks "
        "like that; whether it has that cause is not known. With the weight that we use, 10, nobody but the owner's "
        "own model reads it."
    )
    rows = []
    for (weight,), mine in groups(measured(records), "weight"):
        part = [record.metrics for record in mine]
        own = [[found[name] for found in part] for name in ("own", "recovered_alone")]
        others = [[value for found in part for value in found[name]] for name in ("strangers", "untrained")]
        high = f"{sum(value >= 0.85 for value in others[0])}/{len(others[0])}"
        rows.append((f"{weight:g}", *map(span, own + others), high))
    head = (
        "weight of unmarked vectors", "own model", "own, recovered alone", "strangers", "untrained networks",
        "strangers that read 0.85 or more",
    )  # fmt: skip
    yield Table.of(head, rows)


def span(values: Iterable[float]) -> str:
    """Smallest, largest and mean.

    >>> span([0.25, 0.75])
    '0.25 to 0.75, 0.50 on average'
    """
    given = list(values)
    return f"{min(given):.2f} to {max(given):.2f}, {statistics.fmean(given):.2f} on average"


def probing_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """How many duplicates the probes alone find: one row for every number of probes."""
    rows = [
        (record.case.model, *(str(row[name]) for name in ("probes", "duplicates")), f"{row['found']:.1%}",
         str(row["wrong_links"]))
        for record in measured(records) for row in record.metrics["counts"]
    ]  # fmt: skip
    yield Table.of(("model", "probes", "duplicates", "found", "distinct channels linked"), rows)
    yield from complaints(records)
