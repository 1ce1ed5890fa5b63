"""The paper's table of the certificate at several tolerances."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from canon.bench.records import Record
from canon.bench.tables.common import (
    all_of,
    attack_name,
    attacks_of,
    by,
    complaints,
    groups,
    measured,
    values_of,
    worst,
)
from canon.bench.tables.document import Block, Heading, Paragraph, Row, Table
from canon_benchmarks.tables.published import Published, published, published_cells


def tolerance_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """The worst over all schemes at every tolerance, the same against a stranger, and every scheme's residual."""
    done = measured(records)
    yield Paragraph(
        "Cells: largest residual, smallest share of matched channels, over all schemes. Rows in italics are the "
        "paper's, which prints residuals with four decimals."
    )
    yield _sweep(done, "tier1_max_rel_err", "match_fracs", compared=True)
    yield Heading("Against a stranger's model")
    yield Paragraph(
        "The same certificate against a model that was trained on the same data from another start: smallest residual, "
        f"largest share of matched channels. It passes in {all_of(done, 'stranger_passed', True)} cases."
    )
    yield _sweep(done, "stranger_max_rel_err", "stranger_match_fracs", compared=False)
    yield Heading("Largest residual by scheme")
    attacks = attacks_of(done)
    rows = [
        (scheme, *(worst(by(part, attack=attack), "tier1_max_rel_err") for attack in attacks))
        for (scheme,), part in groups(done, "scheme")
    ]
    yield Table.of(("watermark", *(attack_name(attack) for attack in attacks)), rows)
    yield from complaints(records, lambda _record: "the certificate fails, or a stranger's passes")


def _sweep(records: Sequence[Record], residual: str, shares: str, *, compared: bool) -> Table:
    attacks = attacks_of(records)
    pick: Any = max if compared else min
    opposite: Any = min if compared else max
    tolerances: list[float] = values_of(records, "tolerances")[0] if records else []
    rows = []
    for index, tolerance in enumerate(tolerances):
        cells = []
        for attack in attacks:
            part = by(records, attack=attack)
            found = values_of(part, residual)
            share = opposite(fractions[index] for fractions in values_of(part, shares))
            cells.append(f"{pick(found):.1e}, {share:.4f}" if found else f"∞, {share:.4f}")
        rows.append(Row((f"{tolerance:g}", *cells)))
        row = published("tolerance", tolerance=tolerance) if compared else None
        if row is not None:
            old = published_cells(attacks, functools.partial(_published, row))
            rows.append(Row((f"paper, table {row['table']}", *old), aside=True))
    return Table.of(("tolerance", *(attack_name(attack) for attack in attacks)), rows)


def _published(row: Published, place: int) -> str:
    return f"{row['max_rel_err'][place]:.4f}, {row['match_frac'][place]:.4f}"
