"""The paper's main tables, with its own rows below ours, figures and times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from canon.bench.cases import Recovery
from canon.bench.records import Record
from canon.bench.tables.common import (
    UNMEASURED,
    attack_name,
    attacks_of,
    complaints,
    distinct,
    groups,
    measured,
    one,
    took,
    values_of,
)
from canon.bench.tables.document import Block, Figure, Heading, Paragraph, Row, Table
from canon.bench.tables.recovery import certificate_blocks, similarity_blocks, why_bad
from canon.verify.mark import FRACTION, Tier2
from canon_benchmarks.tables.figures import Panel, draw_lines, draw_similarity
from canon_benchmarks.tables.published import published, published_cells, published_similarity

FRACTIONS: Final = (0.25, 0.5, 0.75, 0.8, 0.9, 0.95, 1.0)
SLACKS: Final = (0.0, 0.01, 0.02, 0.05, 0.1)


def recovery_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Tables in the paper's layout, what the paper has no column for, and what did not come out."""
    yield from similarity_blocks(records, " Rows in italics are the paper's, as published.", _published)
    yield Heading("Similarity before and after")
    yield Figure(
        f"{suite}-similarity",
        "Native similarity of every case: under attack, after recovery alone, and after recovery and alignment.",
        draw_similarity(records),
    )
    yield from certificate_blocks(records)
    yield Heading("Tier 2 at other λ and δ")
    yield Paragraph(
        "The share λ of the lost similarity that must be back, and the slack δ. Cells: cases that pass after recovery "
        "and alignment, in brackets after recovery alone, of those in which the attack took anything. The row in "
        "italics is our default."
    )
    yield _tier2(records)
    yield Heading("Times")
    yield Paragraph("Seconds of each stage, median and largest; several cases shared the machine.")
    yield _times(records)
    panels = _time_panels(records)
    if panels:
        caption = "Seconds of recovery by scheme, architecture and ratio, from the same runs."
        yield Figure(f"{suite}-times", caption, draw_lines(panels, "", slanted=True))
    yield from complaints(records, why_bad)


def _tier2(records: Sequence[Record]) -> Table:
    """How many cases pass the paper's second test, as its two parameters change."""
    done = [record.metrics for record in measured(records)]
    read = [
        [float(str(found[f"{name}_similarity"])) for name in ("clean", "attacked", "aligned", "recovered")]
        for found in done
    ]
    lost = [values for values in read if values[1] < values[0]]
    rows = []
    for fraction in FRACTIONS:
        cells = []
        for slack in SLACKS:
            aligned, alone = (
                sum(Tier2(values[0], values[1], values[place], fraction, slack).passed for values in lost)
                for place in (2, 3)
            )
            cells.append(f"{aligned}/{len(lost)} ({alone})")
        rows.append(Row((f"λ = {fraction:g}", *cells), aside=fraction == FRACTION))
    return Table.of(("", *(f"δ = {slack:g}" for slack in SLACKS)), rows)


def _time_panels(records: Sequence[Record]) -> list[Panel]:
    """One panel per architecture and ratio, one line per attack, where there are several schemes."""
    panels = []
    for (model, ratio), part in groups(measured(records), "model", "ratio"):
        schemes = distinct(r.case.scheme for r in part)
        lines = {}
        for attack in attacks_of(part):
            found = [one(part, attack=attack, scheme=scheme) for scheme in schemes]
            lines[attack_name(attack)] = [None if record is None else record.seconds["recover"] for record in found]
        if len(schemes) > 1:
            panels.append(Panel(f"{model}, ρ = {ratio:g}", schemes, lines, {}))
    return panels


def _published(case: Recovery, attacks: Sequence[str]) -> Row | None:
    wanted = {name: getattr(case, name) for name in ("dataset", "model", "scheme", "ratio", "camouflage")}
    row = published("recovery", **wanted)
    if row is None:
        return None
    gaps = [f"{row[name]:.4f}" if name in row else "" for name in ("delta_attacked", "delta_recovered")]
    cells = published_cells(attacks, lambda i: published_similarity(row, i))
    return Row((f"paper, table {row['table']}", f"{row['clean']:.4f}", *gaps, "✓", *cells), aside=True)


def _times(records: Sequence[Record]) -> Table:
    stages = ("trace", "attack", "recover", "align", "certify", "extract")
    rows = []
    for (model, ratio), part in groups(records, "model", "ratio"):
        sizes = values_of(part, "parameters_attacked")
        largest = f"{max(sizes) / 1e6:.0f}" if sizes else UNMEASURED
        rows.append((model, f"{ratio:g}", largest, *(took(part, stage) for stage in stages)))
    return Table.of(("model", "ρ", "largest attacked, millions of parameters", *stages), rows)
