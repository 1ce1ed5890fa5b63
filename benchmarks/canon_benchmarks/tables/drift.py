"""Changed copies and strangers: residuals and bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from canon.bench.records import Record
from canon.bench.tables.common import by, complaints, groups, measured, values_of
from canon.bench.tables.document import Block, Heading, Paragraph, Table

HEAD = (
    "copy", "accuracy", "residual: median", "95%", "max", "passes at", "bits, by the reference", "by the layout key",
)  # fmt: skip


def drift_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """A table of copies for every model, and a sentence on strangers."""
    done = measured(records)
    for (model,), part in groups(done, "model"):
        yield Heading(model)
        yield Table.of(HEAD, [_row(record) for record in part if record.case.change != "stranger"])
        if others := by(part, change="stranger"):
            accuracy = values_of(others, "accuracy")
            most = [max(values_of(others, f"{way}_distinct")) for way in ("reference", "key")]
            yield Paragraph(
                f"{len(others)} models were trained on the same data from other starts (accuracy {min(accuracy):.3f} "
                f"to {max(accuracy):.3f}): {sum(record.good for record in others)} are not believed; at most "
                f"{most[0]:.1%} of their channels have a distinct match by way of the reference, {most[1]:.1%} by way "
                "of the layout key."
            )
    yield from complaints(records)


def _row(record: Record) -> tuple[str, ...]:
    found = record.metrics
    cells = [found.get(f"reference_{name}") for name in ("median", "q95", "max", "passes_at")]
    shown = ["none" if cell is None else f"{cell:g}" for cell in cells]
    bits = [f"{found[f'{way}_matched']}/{found[f'{way}_total']}" if f"{way}_matched" in found else "unread"
            for way in ("reference", "key")]  # fmt: skip
    case = record.case
    change = f"fine-tuned, {case.change}, {case.steps} steps" if case.change.startswith("rate ") else case.change
    return change, f"{found['accuracy']:.3f}", *shown, *bits
