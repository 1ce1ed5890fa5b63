"""The paper's main tables: similarity under attack and after recovery."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from canon.bench.cases import Recovery
from canon.bench.measures.claims import STRONG
from canon.bench.records import Record
from canon.bench.tables.common import (
    UNMEASURED,
    all_of,
    attack_name,
    attacks_of,
    by,
    complaints,
    distinct,
    one,
    published_cells,
    unmeasured,
    values_of,
    worst,
)
from canon.bench.tables.document import BAD, Block, Figure, Heading, Paragraph, Row, Table
from canon.bench.tables.figures import Panel, draw_lines, draw_similarity
from canon.bench.tables.judging import CANONICAL, canonical_only, passes
from canon.bench.tables.published import published, published_similarity

SETTINGS: Final = ("dataset", "seed", "attack_seed", "camouflage")
"""What has tables of its own where a suite has several of it."""


def recovery_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Tables in the paper's layout, what the paper has no column for, and what did not come out."""
    yield Paragraph(
        "Cells: similarity under attack → similarity after recovery and alignment (in brackets: after recovery alone, "
        "with channels in whatever order they are). Δacc is the worst absolute gap of test accuracy over the attacks. "
        f"{CANONICAL}: certified on canonical forms only. Rows in italics are the paper's, as published."
    )
    yield _headline(records)
    several = [name for name in SETTINGS if len(distinct(getattr(r.case, name) for r in records)) > 1]
    names = ("ratio", "model", *several)
    for values in distinct(tuple(getattr(r.case, name) for name in names) for r in records):
        ratio, model, *rest = values
        told = "".join(f", {name.replace('_', ' ')} {value}" for name, value in zip(several, rest, strict=True))
        yield Heading(f"{model}, ρ = {ratio:g}{told}")
        yield _similarity(by(records, **dict(zip(names, values, strict=True))))
    yield Heading("Similarity before and after")
    yield Figure(
        f"{suite}-similarity",
        "Native similarity of every case: under attack, after recovery alone, and after recovery and alignment.",
        draw_similarity(records),
    )
    yield Heading("Certificates and verdicts")
    yield Paragraph(
        "Residuals are the largest of any layer of any case, marked or not. By the layout key: the owner has only the "
        "key, a file of the given size. A wrong key is another key of the same scheme, brought with the owner's own "
        "reference; a wrong owner brings a model trained on the same data and such a key."
    )
    yield _certificates(records)
    yield Heading("Times")
    yield Paragraph("Seconds of each stage, median and largest; several cases shared the machine.")
    yield _times(records)
    panels = _time_panels(records)
    if panels:
        caption = "Seconds of recovery by scheme, architecture and ratio, from the same runs."
        yield Figure(f"{suite}-times", caption, draw_lines(panels, "", slanted=True))
    yield Heading("What did not come out as it should")
    yield complaints(records, why_bad) or Paragraph("Nothing.")


def _time_panels(records: Sequence[Record]) -> list[Panel]:
    """One panel per architecture and ratio, one line per attack, where there are several schemes."""
    done = [record for record in records if record.outcome == "done"]
    panels = []
    for model, ratio in distinct((_case(r).model, _case(r).ratio) for r in done):
        part = by(done, model=model, ratio=ratio)
        schemes = distinct(r.case.scheme for r in part)
        lines = {}
        for attack in attacks_of(part):
            found = [one(part, attack=attack, scheme=scheme) for scheme in schemes]
            lines[attack_name(attack)] = [None if record is None else record.seconds["recover"] for record in found]
        if len(schemes) > 1:
            panels.append(Panel(f"{model}, ρ = {ratio:g}", schemes, lines, {}))
    return panels


def _case(record: Record) -> Recovery:
    assert isinstance(record.case, Recovery), "records of one kind"
    return record.case


def _headline(records: Sequence[Record]) -> Paragraph:
    done = [record for record in records if record.outcome == "done"]
    back = sum(r.metrics.get("aligned_similarity") == r.metrics.get("clean_similarity") for r in done)
    return Paragraph(
        f"Of {len(done)} measured cells, Tier 1 passes on the models themselves in {passes(done)} ({CANONICAL}: on "
        "canonical forms only, where the clean model has redundancy of its own that recovery removed), the recovered "
        f"similarity equals the clean one in {back}/{len(done)}, Δacc after recovery is 0 in "
        f"{all_of(done, 'recovered_delta_accuracy', 0.0)} and at most {worst(done, 'recovered_delta_accuracy')}."
    )


def _similarity(records: Sequence[Record]) -> Table:
    attacks = attacks_of(records)
    head = ["watermark", "clean sim.", "Δacc (att.)", "Δacc (rec.)", "Tier 1", *(attack_name(a) for a in attacks)]
    rows = []
    for scheme in distinct(record.case.scheme for record in records):
        mine = by(records, scheme=scheme)
        clean = values_of(mine, "clean_similarity")
        rows.append(
            Row(
                (
                    scheme,
                    f"{clean[0]:.4f}" if clean else UNMEASURED,
                    _gap(mine, "attacked_delta_accuracy"),
                    _gap(mine, "recovered_delta_accuracy"),
                    passes(mine),
                    *(_cell(one(mine, attack=attack)) for attack in attacks),
                )
            )
        )
        row = _published(_case(mine[0]), attacks)
        if row is not None:
            rows.append(row)
    return Table.of(head, rows)


def _cell(record: Record | None) -> str:
    missing = unmeasured(record)
    if missing is not None or record is None:
        return missing or UNMEASURED
    found = record.metrics
    text = f"{found['attacked_similarity']:.4f}→{found['aligned_similarity']:.4f} ({found['recovered_similarity']:.4f})"
    if canonical_only(record):
        text += f" {CANONICAL}"
    return text if record.good else f"{text} {BAD}"


def _gap(records: Sequence[Record], metric: str) -> str:
    found = values_of(records, metric)
    return f"{max(found):.4f}" if found else UNMEASURED


def _published(case: Recovery, attacks: Sequence[str]) -> Row | None:
    wanted = {name: getattr(case, name) for name in ("dataset", "model", "scheme", "ratio", "camouflage")}
    row = published("recovery", **wanted)
    if row is None:
        return None
    gaps = [f"{row[name]:.4f}" if name in row else "" for name in ("delta_attacked", "delta_recovered")]
    cells = published_cells(attacks, lambda i: published_similarity(row, i))
    return Row((f"paper, table {row['table']}", f"{row['clean']:.4f}", *gaps, "✓", *cells), aside=True)


def _certificates(records: Sequence[Record]) -> Table:
    head = (
        "model", "ρ", "Tier 1", "worst residual", "Tier 2", "largest p", "owner believed", "by key: Tier 1",
        "by key: worst residual", "by key: believed", "key, KB", "wrong key not believed", "wrong owner not believed",
    )  # fmt: skip
    rows = []
    for model, ratio in distinct((_case(r).model, _case(r).ratio) for r in records):
        part = [r for r in by(records, model=model, ratio=ratio) if r.outcome == "done"]
        sizes = values_of(part, "key_bytes")
        rows.append((
            model, f"{ratio:g}", passes(part), worst(part, "tier1_all_max_rel_err"),
            all_of(part, "tier2_passed", True), worst(part, "p_value"), _believed(part, "verdict"),
            all_of(part, "key_passed", True), worst(part, "key_all_max_rel_err"), _believed(part, "key_verdict"),
            f"{max(sizes) / 1000:.0f}" if sizes else UNMEASURED, _believed(part, "wrong_key_verdict", wanted=False),
            _believed(part, "wrong_owner_verdict", wanted=False),
        ))  # fmt: skip
    return Table.of(head, rows)


def _believed(records: Sequence[Record], metric: str, *, wanted: bool = True) -> str:
    """How many verdicts believe a claimant, or do not."""
    found = values_of(records, metric)
    return f"{sum(str(value).startswith(STRONG) is wanted for value in found)}/{len(found)}"


def _times(records: Sequence[Record]) -> Table:
    stages = ("trace", "attack", "recover", "align", "certify", "extract")
    rows = []
    for model, ratio in distinct((_case(r).model, _case(r).ratio) for r in records):
        part = by(records, model=model, ratio=ratio)
        cells = []
        for stage in stages:
            took = [record.seconds[stage] for record in part if stage in record.seconds]
            cells.append(f"{statistics.median(took):.2g}, {max(took):.2g}" if took else UNMEASURED)
        sizes = values_of(part, "parameters_attacked")
        largest = f"{max(sizes) / 1e6:.0f}" if sizes else UNMEASURED
        rows.append((model, f"{ratio:g}", largest, *cells))
    return Table.of(("model", "ρ", "largest attacked, millions of parameters", *stages), rows)


def why_bad(record: Record) -> str:
    """Why a case is not as it should be."""
    found = record.metrics
    reasons = []
    if not found["tier1_passed"]:
        reasons.append(f"Tier 1 does not pass, residual {found['tier1_max_rel_err']}")
    if found["aligned_similarity"] != found["clean_similarity"]:
        reasons.append(f"similarity {found['aligned_similarity']} instead of {found['clean_similarity']}")
    if found["recovered_delta_accuracy"] != 0:
        gap, same = found["recovered_gap"], found["recovered_agreement"]
        reasons.append(f"Δacc {found['recovered_delta_accuracy']} (logits within {gap}, decisions {same} the same)")
    for claimant in ("verdict", "key_verdict"):
        if not str(found[claimant]).startswith(STRONG):
            reasons.append(f"{claimant.replace('_', ' ')}: {found[claimant]}")
    for claimant in ("wrong_key", "wrong_owner"):
        if str(found[f"{claimant}_verdict"]).startswith(STRONG):
            similarity = found[f"{claimant}_similarity"]
            reasons.append(f"a {claimant.replace('_', ' ')} is believed, at similarity {similarity:.4f}")
    return "; ".join(reasons)
