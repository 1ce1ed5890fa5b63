"""What other defences make of the same suspects."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.common import (
    UNMEASURED,
    attack_name,
    attacks_of,
    by,
    complaints,
    distinct,
    groups,
    took,
    values_of,
)
from canon.bench.tables.document import BAD, Block, Heading, Paragraph, Table


def baseline_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """One table per architecture and camouflage, and the times."""
    yield Paragraph(
        "Cells: how many of the schemes' models have the clean function back (test accuracy within 0.001) and pass "
        "Tier 1; and the mean similarity, aligned where the weights force an alignment. “–”: the defence does not "
        "apply, and says so. The published defences come without code; `canon_benchmarks.baselines` says how "
        "each was read."
    )
    for (model, camouflage), part in groups(records, "model", "camouflage"):
        yield Heading(f"{model}, {'with' if camouflage else 'without'} permutation and scaling")
        yield _table(part)
    yield Heading("Seconds")
    yield _times(records)
    yield from complaints(records)


def _table(records: Sequence[Record]) -> Table:
    attacks = attacks_of(records)
    rows = [
        (method, *(_cell(by(part, attack=attack)) for attack in attacks))
        for (method,), part in groups(records, "method")
    ]
    return Table.of(("defence", *(attack_name(attack) for attack in attacks)), rows)


def _cell(records: Sequence[Record]) -> str:
    if not records:
        return UNMEASURED
    failed = [record for record in records if record.outcome != "done"]
    if failed:
        return f"**{failed[0].outcome}** {len(failed)}/{len(records)}"
    if not any(record.metrics["applies"] for record in records):
        return "–"
    function = sum(float(gap) <= 1e-3 for gap in values_of(records, "recovered_delta_accuracy"))
    passed = sum(value is True for value in values_of(records, "tier1_passed"))
    similarity = statistics.fmean(values_of(records, "aligned_similarity"))
    text = f"{function}/{len(records)}, {passed}/{len(records)}, {similarity:.3f}"
    return text if function == passed == len(records) else f"{text} {BAD}"


def _times(records: Sequence[Record]) -> Table:
    models = distinct(record.case.model for record in records)
    rows = []
    for (method,), part in groups(records, "method"):
        rows.append((method, *(took(by(part, model=model)) for model in models)))
    return Table.of(("defence", *(f"{model}: median, largest" for model in models)), rows)
