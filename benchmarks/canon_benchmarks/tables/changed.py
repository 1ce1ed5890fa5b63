"""Changed copies: what is found and answered at growing strength, and where accuracy itself breaks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import mean
from typing import Any

from canon.bench.measures.recovery import STRONG
from canon.bench.records import Record
from canon.bench.tables.common import UNMEASURED, by, complaints, distinct, groups, measured, values_of
from canon.bench.tables.document import Block, Figure, Heading, Paragraph, Table
from canon.verify.mark import ALPHA
from canon_benchmarks.cases import UNCHANGED
from canon_benchmarks.measures.changed import BY_REFERENCE, BY_ROBUST_KEY, KEPT, RELATED
from canon_benchmarks.tables.changed_figure import bit_shares, draw_changed

HEAD = (
    "after", "accuracy", "coverage: model", "robust key", "key", "residual", "network: model", "robust key", "key",
    "function", "mark: model", "robust key", "bits", "p-value", "matches",
)  # fmt: skip


def changed_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """A table for each architecture, curves for each kind of change, and the marks scheme by scheme."""
    done = measured(records)
    yield Paragraph(
        "Every row: nine trained and marked models. Accuracy: the mean on the test images, with the clean models' in "
        f"the first row; it *broke* in a model that lost more than {KEPT:g}. Coverage: the least share of the owner's "
        "channels that was found with the owner's model, with its robust layout key, and with its plain one. Residual: "
        "the median over channels, layers and models, by the owner's model. Network, function, mark: how many answers "
        "favour the owner (equal, contained or derived; agree; read); by the robust key, a mark counts when the bits "
        "in the extracted model have a p-value of 10⁻⁶ or less. Bits: the least share that is right. p-value: the "
        "largest. Matches: how often that is the verdict. Bits, p-value, function and verdict are by the owner's "
        "model. Who was first is *nothing shown* throughout, as no claim is given. Wanted where accuracy is kept: "
        f"coverage of at least {BY_REFERENCE:g} by the model and {BY_ROBUST_KEY:g} by the robust key; what misses is "
        "bold. A row with fewer than nine has models that were not measured yet, or whose change was refused."
    )
    plain, hidden = [r for r in done if r.case.attack == "mix-opseq"], [r for r in done if r.case.attack != "mix-opseq"]
    for (model,), part in groups(plain, "model"):
        yield Heading(model)
        yield _table(part, "after")
    if plain:
        yield Heading("Curves")
        yield Paragraph(
            "Means over nine schemes. A dotted line stands at the first strength at which accuracy is broken: what "
            "lies beyond is not worth stealing."
        )
        yield Figure(
            f"{suite}_curves", "Coverage, bits and accuracy over the strength of each change", draw_changed(plain)
        )
        yield Heading("Where accuracy breaks")
        yield _breaks(plain)
        yield Heading("Marks read, scheme by scheme")
        yield Paragraph("By the owner's model, over all architectures; in brackets where accuracy is broken for most.")
        yield _marks(plain)
    if hidden:
        yield Heading("Attacks that leave nothing redundant")
        counts = Counter(record.case.model for record in hidden)
        told = ", ".join(f"{count} on {model}" for model, count in counts.items())
        yield Paragraph(f"With nothing done afterwards; cases measured: {told}.")
        yield _table(hidden, "attack")
        yield _marks(hidden, "attack")
    yield from complaints(records, _why_bad)


def _table(records: Sequence[Record], field: str) -> Table:
    return Table.of((field, *HEAD[1:]), [(name, *_cells(part)) for (name,), part in groups(records, field)])


def _cells(records: Sequence[Record]) -> tuple[str, ...]:
    accuracy, clean = mean(values_of(records, "accuracy")), mean(values_of(records, "clean_accuracy"))
    kept = [r for r in records if r.metrics["kept"]]
    told = f"{accuracy:.3f}" + (f" (clean {clean:.3f})" if getattr(records[0].case, "after", "") == UNCHANGED else "")
    broken = len(records) - len(kept)
    bits = bit_shares(records)
    chances = values_of(records, "reference_p_value")
    residuals = sorted(values_of(records, "reference_residual"))
    return (
        told + (f", {broken} broke" if broken else ""),
        _least(records, "reference", BY_REFERENCE),
        _least(records, "robust", BY_ROBUST_KEY),
        _least(records, "key", 0.0),
        f"{residuals[len(residuals) // 2]:.2g}" if residuals else UNMEASURED,
        *(_favour(records, f"{way}_network", RELATED) for way in ("reference", "robust", "key")),
        _favour(records, "reference_function", ("agree",)),
        _favour(records, "reference_mark", ("read",)),
        _likely(records, "robust_p_value"),
        f"{min(bits):.2f}" if bits else UNMEASURED,
        f"{max(chances):.1g}" if chances else UNMEASURED,
        _favour(records, "reference_verdict", STRONG),
    )


def _least(records: Sequence[Record], way: str, wanted: float) -> str:
    least = min(values_of(records, f"{way}_coverage"))
    missed = any(r.metrics["kept"] and r.metrics[f"{way}_coverage"] < wanted for r in records)
    return f"**{least:.3f}**" if missed else f"{least:.3f}"


def _favour(records: Sequence[Record], metric: str, words: Sequence[str]) -> str:
    found = values_of(records, metric)
    return f"{sum(word in words for word in found)}/{len(found)}"


def _likely(records: Sequence[Record], metric: str) -> str:
    found = values_of(records, metric)
    return f"{sum(chance <= ALPHA for chance in found)}/{len(found)}"


def _breaks(records: Sequence[Record]) -> Table:
    """By model and kind of change: the first strength at which the mean accuracy is broken, and what is found there."""
    rows = []
    for (model,), mine in groups(records, "model"):
        for kind in distinct(r.case.after.partition("=")[0].partition(":rate")[0] for r in mine):
            steps = distinct(r.case.after for r in mine if r.case.after.startswith(kind))
            broken = [step for step in steps if _broke(by(mine, after=step))]
            if kind == UNCHANGED or len(steps) < 2:
                continue
            last = steps[steps.index(broken[0]) - 1] if broken and steps.index(broken[0]) else None
            kept = steps[-1] if not broken else last
            cells = _found(by(mine, after=kept)) if kept is not None else (UNMEASURED,) * 3
            rows.append((model, kind, kept or "none", *cells, broken[0] if broken else "none of these"))
    head = (
        "model", "change", "strongest that keeps accuracy", "least coverage there", "network", "marks read",
        "breaks at",
    )  # fmt: skip
    return Table.of(head, rows)


def _broke(records: Sequence[Record]) -> bool:
    return bool(mean(values_of(records, "accuracy")) < mean(values_of(records, "clean_accuracy")) - KEPT)


def _found(records: Sequence[Record]) -> tuple[str, str, str]:
    words = Counter(values_of(records, "reference_network"))
    answers = ", ".join(f"{count} {word}" for word, count in words.most_common())
    return (
        f"{min(values_of(records, 'reference_coverage')):.3f}",
        answers,
        _favour(records, "reference_mark", ("read",)),
    )


def _marks(records: Sequence[Record], field: str = "after") -> Table:
    steps = distinct(getattr(record.case, field) for record in records)
    rows = []
    for (scheme,), part in groups(records, "scheme"):
        cells = []
        for step in steps:
            mine = by(part, **{field: step})
            read = _favour(mine, "reference_mark", ("read",))
            most = mine and sum(not r.metrics["kept"] for r in mine) * 2 > len(mine)
            cells.append(f"({read})" if most else read)
        rows.append((scheme, *cells))
    return Table.of(("watermark", *(str(step) for step in steps)), rows)


def _why_bad(record: Record) -> str:
    found: Any = record.metrics
    return (
        f"accuracy {found['accuracy']:g} (clean {found['clean_accuracy']:g}); coverage "
        f"{found['reference_coverage']:g} by the model, {found['robust_coverage']:g} by the robust key; "
        f"{found['reference_network']}, {found['robust_network']}"
    )
