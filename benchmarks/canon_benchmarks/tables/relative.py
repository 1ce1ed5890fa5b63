"""Strangers, innocents, thieves and copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.common import complaints, groups, measured, values_of
from canon.bench.tables.document import Block, Heading, Paragraph, Table
from canon_benchmarks.measures.relative import why_bad
from canon_benchmarks.schooling import COPIES, TUNED, UNLIKE


def relative_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """A table for those who have nothing of the owner's model, one for its family, one for copies."""
    done = measured(records)
    for of, shown in ((UNLIKE, _strangers), (TUNED, _family), (COPIES, _copies)):
        if part := [record for record in done if record.case.who in of]:
            yield from shown(part)
    yield from complaints(records, lambda record: why_bad(record.case.who, record.metrics))


def _strangers(records: Sequence[Record]) -> Iterator[Block]:
    yield Heading("Strangers")
    yield Paragraph("Wanted: *unrelated* or *not decided*, and at most 1% beyond the first layers.")
    rows = []
    for (data, model, who), mine in groups(records, "dataset", "model", "who"):
        cells = [data, model, who, str(len(mine)), _span(mine, "accuracy", 3)]
        for way in ("alone", "robust"):
            cells += [_words(mine, way), f"{max(values_of(mine, f'{way}_deep'), default=0.0):.2%}"]
        rows.append([*cells, _words(mine, "aware")])
    head = (
        "data", "model", "who", "models", "accuracy", "by the model", "most beyond the first", "by the robust key",
        "most beyond the first", "first weights given as ancestor",
    )  # fmt: skip
    yield Table.of(head, rows)


def _family(records: Sequence[Record]) -> Iterator[Block]:
    yield Heading("Innocents and thieves")
    yield Paragraph(
        "All come from one public ancestor, without a disguise. Wanted: with the ancestor given no innocent is equal, "
        "contained or derived, and a mildly fine-tuned copy stays derived; without it the answer names a common "
        "ancestor as an explanation. *Updates*: cosine of what the suspect and the owner added to the ancestor."
    )
    rows = []
    for (who,), mine in groups(records, "who"):
        cosines = [cosine for found in values_of(mine, "aware_updates") for cosine in found]
        rows.append((
            who, str(len(mine)), _span(mine, "accuracy", 3), f"{min(values_of(mine, 'alone_coverage')):.3f}",
            _words(mine, "alone"), f"{sum(values_of(mine, 'alone_names_ancestor'))}/{len(mine)}",
            _words(mine, "aware"), f"{min(cosines):.2f} to {max(cosines):.2f}" if cosines else "none",
        ))  # fmt: skip
    head = (
        "who", "models", "accuracy", "coverage", "without the ancestor", "explanation named", "with the ancestor",
        "updates",
    )  # fmt: skip
    yield Table.of(head, rows)


def _copies(records: Sequence[Record]) -> Iterator[Block]:
    yield Heading("Copies of a trained network")
    yield Paragraph(
        "The owner's model, disguised with mix-opseq at ρ = 0.2, permuted and scaled, and changed before or after. "
        "Fine-tuning: two epochs on the owner's data, at a rate of 0.01 after the disguise, 0.02 before it. Wanted: "
        "coverage of 0.99 by the model, 0.95 by the robust key."
    )
    rows = []
    for r in records:
        case, found = r.case, r.metrics
        residual = "" if found.get("alone_residual") is None else f"{found['alone_residual']:g}"
        rows.append((
            f"{case.model}, {case.dataset}: {case.who.removeprefix('copy: ')}", f"{found['accuracy']:.3f}",
            f"{found['owner_accuracy']:.3f}", f"{found['alone_verdict']}, {found['alone_network']}",
            _marked(found["alone_coverage"], 0.99), residual, f"{found['robust_network']}",
            _marked(found["robust_coverage"], 0.95),
        ))  # fmt: skip
    head = ("copy", "accuracy", "owner's", "verdict", "coverage", "residual", "robust key", "coverage")
    yield Table.of(head, rows)


def _words(records: Sequence[Record], way: str) -> str:
    counts = Counter(values_of(records, f"{way}_network"))
    return ", ".join(f"{count} {word}" for word, count in counts.most_common())


def _span(records: Sequence[Record], metric: str, digits: int) -> str:
    found = values_of(records, metric)
    return f"{min(found):.{digits}f} to {max(found):.{digits}f}"


def _marked(coverage: object, wanted: float) -> str:
    assert isinstance(coverage, float), "coverage is a share"
    return f"{coverage:.4f}" if coverage >= wanted else f"**{coverage:.4f}**"
