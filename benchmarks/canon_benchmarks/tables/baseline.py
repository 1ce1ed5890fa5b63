"""What other defences make of the same suspects."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.common import UNMEASURED, attack_name, attacks_of, by, complaints, distinct, values_of
from canon.bench.tables.document import BAD, Block, Heading, Paragraph, Table
from canon_benchmarks.cases import Baseline


def baseline_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """One table per architecture and camouflage, and the times."""
    yield Paragraph(
        "Cells: how many of the schemes' models have the clean function back (test accuracy within 0.001) and pass "
        "Tier 1; and the mean similarity, aligned where the weights force an alignment. “–”: the defence does not "
        "apply, and says so. The published defences come without code; `canon_benchmarks.baselines` says how "
        "each was read."
    )
    for model, camouflage in distinct((_case(r).model, _case(r).camouflage) for r in records):
        part = by(records, model=model, camouflage=camouflage)
        yield Heading(f"{model}, {'with' if camouflage else 'without'} permutation and scaling")
        yield _table(part)
    yield Heading("Seconds")
    yield _times(records)
    failed = complaints(records, lambda _record: "")
    if failed is not None:
        yield Heading("What failed")
        yield failed


def _case(record: Record) -> Baseline:
    assert isinstance(record.case, Baseline), "records of one kind"
    return record.case


def _table(records: Sequence[Record]) -> Table:
    attacks = attacks_of(records)
    rows = [
        (method, *(_cell(by(records, method=method, attack=attack)) for attack in attacks))
        for method in distinct(_case(record).method for record in records)
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
    models = distinct(_case(record).model for record in records)
    rows = []
    for method in distinct(_case(record).method for record in records):
        cells = []
        for model in models:
            took = [r.seconds["recover"] for r in by(records, method=method, model=model) if "recover" in r.seconds]
            cells.append(f"{statistics.median(took):.2g}, {max(took):.2g}" if took else UNMEASURED)
        rows.append((method, *cells))
    return Table.of(("defence", *(f"{model}: median, largest" for model in models)), rows)
