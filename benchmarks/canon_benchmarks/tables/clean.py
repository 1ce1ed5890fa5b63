"""The paper's false-positive tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.common import (
    CANONICAL,
    UNMEASURED,
    all_of,
    canonical_only,
    complaints,
    groups,
    measured,
    unmeasured,
)
from canon.bench.tables.document import BAD, Block, Heading, Paragraph, Row, Table
from canon_benchmarks.tables.published import published


def clean_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """One table per architecture."""
    done = measured(records)
    yield Paragraph(
        "P-FPR: share of the parameters that recovery removed. L-FP: Conv and Linear layers whose output shape "
        "changed, of all. Δsim and Δacc: absolute gaps of similarity and test accuracy. Tier 1: watermark-bearing "
        f"layers that pass ({CANONICAL}: on canonical forms only). Recovery was told nothing of the clean widths. Rows "
        "in italics are the paper's, as published; beyond resnet18 it marks other layers than our defaults. A "
        "scheme that prunes (lottery) can silence all of a channel: it is then zero whatever the input, and nothing "
        "tells it from an injected one but the width that the owner knows."
    )
    yield Paragraph(f"Every tensor stayed the same, bit for bit, in {all_of(done, 'untouched', True)} cases.")
    for (model,), part in groups(records, "model"):
        yield Heading(model)
        yield _table(part)
    yield from complaints(records, _why_bad)


def _table(records: Sequence[Record]) -> Table:
    rows = []
    for (scheme,), part in groups(records, "scheme"):
        rows += [Row((scheme, record.case.method, *_cells(record))) for record in part]
        row = published("clean", model=records[0].case.model, scheme=scheme)
        if row is not None:
            figures = [f"{row[n]:.4f}" for n in ("parameter_false_positives", "delta_similarity", "delta_accuracy")]
            cells = (figures[0], row["layers_changed"], figures[1], figures[2], f"✓ ({row['tier1']})", "")
            rows.append(Row(("paper", f"table {row['table']}", *cells), aside=True))
    return Table.of(("watermark", "method", "P-FPR", "L-FP", "Δsim", "Δacc", "Tier 1", "tensors"), rows)


def _cells(record: Record) -> tuple[str, ...]:
    missing = unmeasured(record)
    if missing is not None:
        return (missing, *[UNMEASURED] * 5)
    found = record.metrics
    passed = "✓" if found["tier1_passed"] else "✗"
    mark = CANONICAL if canonical_only(record) else ""
    end = "" if record.good else f" {BAD}"
    return (
        f"{found['parameter_false_positives']:.4f}",
        f"{found['layers_changed']}/{found['layers']}",
        f"{found['delta_similarity']:.4f}",
        f"{found['recovered_delta_accuracy']:.4f}",
        f"{passed} ({found['tier1_layers_passed']}/{found['tier1_layers']}){mark}{end}",
        "same" if found["untouched"] else "rewritten",
    )


def _why_bad(record: Record) -> str:
    found = record.metrics
    why = ""
    if "removed" in found:
        stays = (
            "stay when the clean widths are told" if found["untouched_if_told"] else "go even if the widths are told"
        )
        why = f"; channels removed: {found['removed']}, which {stays}"
    return (
        f"P-FPR {found['parameter_false_positives']:.2g}, {found['layers_changed']} layers changed, "
        f"Δsim {found['delta_similarity']}, Δacc {found['recovered_delta_accuracy']}, "
        f"Tier 1 {'passes' if found['tier1_passed'] else 'does not pass'}{why}"
    )
