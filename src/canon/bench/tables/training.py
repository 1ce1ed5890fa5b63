"""What training found: accuracy and similarity of every scheme on every architecture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from canon.bench.cases import TWIN, Training
from canon.bench.measures.training import CHANCE, HARD, SIMILARITY, WITHIN, reaches_the_bar
from canon.bench.records import Record
from canon.bench.tables.common import UNMEASURED, complaints, distinct, groups, one, unmeasured
from canon.bench.tables.document import BAD, Block, Heading, Paragraph, Table

HEAD: Final = (
    "watermark", "similarity", "bits", "accuracy", "minus the twin's", "wrong key", "key on the twin", "layers",
    "epochs", "seconds", "trained on",
)  # fmt: skip


def judged(record: Record) -> Record:
    """The record by today's bar: a bar for training may have risen since it was measured."""
    if not isinstance(record.case, Training) or record.outcome != "done":
        return record
    return replace(record, metrics={**record.metrics, "good": reaches_the_bar(record.case, record.metrics)})


def training_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """One table per architecture."""
    yield Paragraph(
        "Accuracy is that of the shipped model on the test images; the twin is the same model trained in the same way "
        "without a mark. A wrong key is another key of the same scheme."
    )
    several = [name for name in ("dataset", "seed") if len(distinct(getattr(r.case, name) for r in records)) > 1]
    names = ("model", *several)
    for (model, *rest), part in groups(records, *names):
        twin = one(part, scheme=TWIN)
        yield Heading(", ".join([model, *(f"{name} {value}" for name, value in zip(several, rest, strict=True))]))
        if twin is not None and twin.outcome == "done":
            found = twin.metrics
            yield Paragraph(f"The twin's accuracy is {found['accuracy']:.4f} after {found['epochs']} epochs.")
        yield Table.of(
            HEAD,
            [_row(record) for record in part if record.case.scheme != TWIN],
        )
    yield Paragraph(
        f"As it should be: similarity 1 (riga21 {SIMILARITY['riga21']}; on CIFAR-100 {HARD['cifar100']}), accuracy at "
        f"most {WITHIN.get(records[0].case.dataset, 0.01)} below the twin's (on MNIST also at least 0.99), and a wrong "
        f"key reads between {CHANCE[0]} and {CHANCE[1]}. A twin on MNIST reaches 0.99, on CIFAR-100 0.59, with a stem "
        "for small images 0.75; where it does not, no marked model beside it counts as good. The bars are today's, "
        "whenever a record was made."
    )
    yield from complaints(records, _why_bad)


def _why_bad(record: Record) -> str:
    found = record.metrics
    if record.case.scheme == TWIN:
        return f"accuracy {found['accuracy']:.4f}"
    return (
        f"similarity {found['similarity']:.4f}, accuracy {found['accuracy']:.4f}, twin {found['twin_accuracy']:.4f}, "
        f"wrong key {found['wrong_key_similarity']:.4f}"
    )


def _row(record: Record) -> tuple[str, ...]:
    missing = unmeasured(record)
    if missing is not None:
        return (record.case.scheme, missing, *[UNMEASURED] * 9)
    found = record.metrics
    accuracy, twin = found["accuracy"], found["twin_accuracy"]
    assert isinstance(accuracy, float) and isinstance(twin, float), "accuracies are numbers"  # noqa: PT018
    return (
        record.case.scheme,
        f"{found['similarity']:.4f}" + ("" if record.good else f" {BAD}"),
        f"{found['matched']}/{found['total']}",
        f"{accuracy:.4f}",
        f"{accuracy - twin:+.4f}",
        f"{found['wrong_key_similarity']:.4f}",
        UNMEASURED if found["twin_similarity"] is None else f"{found['twin_similarity']:.4f}",
        f"{found['layers']}",
        f"{found['epochs']}",
        f"{record.seconds['training']:.0f}",
        f"{found['trained_on']}",
    )
