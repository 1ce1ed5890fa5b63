"""Networks with random weights, disguised, written as files or as other programs: a page for each kind of case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from canon.bench.records import Record
from canon.bench.tables.common import attacks_of, by, complaints, distinct, groups, measured, one, values_of
from canon.bench.tables.document import Block, Heading, Paragraph, Table

Cells = Callable[[Sequence[Record]], Sequence[str]]


def one_by_one(
    head: Sequence[str], records: Sequence[Record], row: Callable[[Any, Any], Sequence[str]]
) -> Iterator[Block]:
    """A row for every measured case, from its values and its figures, and what did not come out."""
    yield Table.of(head, [row(record.case, record.metrics) for record in measured(records)])
    yield from complaints(records)


def _rows_by_model(head: Sequence[str], records: Sequence[Record], cells: Cells) -> Iterator[Block]:
    """A row for every model and ratio; where all its attacks were refused, the row says so."""
    rows = []
    for (model, ratio), part in groups(records, "model", "ratio"):
        found = [record for record in part if record.outcome != "refused"]
        rows.append((model, f"{ratio:g}", *(cells(found) if found else ["refused", *[""] * (len(head) - 1)])))
    yield Table.of(("model", "ρ", *head), rows)
    yield from complaints(records)


def _table_by_attack(records: Sequence[Record], metric: str) -> Table:
    """By attack, how many cases are good and the largest value of a metric."""

    def cell(found: Sequence[Record]) -> str:
        done = [record for record in found if record.outcome != "refused"]
        if not done:
            return "refused" if found else ""
        largest = max(values_of(done, metric), default=float("nan"))
        refused = f", {len(found) - len(done)} refused" if len(found) > len(done) else ""
        return f"{sum(record.good for record in done)}/{len(done)}, {largest:.0e}{refused}"

    attacks = attacks_of(records)
    rows = [
        (model, f"{ratio:g}", *(cell(by(part, attack=attack)) for attack in attacks))
        for (model, ratio), part in groups(records, "model", "ratio")
    ]
    return Table.of(("model", "ρ", *attacks), rows)


def _good_of(records: Sequence[Record]) -> str:
    """How many came out as they should, of how many."""
    return f"{sum(record.good for record in records)}/{len(records)}"


def _largest(records: Sequence[Record], metric: str) -> str:
    return f"{max(values_of(records, metric)):.1e}"


def _kernels(records: Sequence[Record]) -> Iterator[Block]:
    """How many were attacked without expanded kernels, where some were."""
    if plain := sum(record.metrics.get("kernels") == "not expanded" for record in records):
        yield Paragraph(f"{plain} were attacked without expanded kernels, which would have passed 10⁹ parameters.")


def kept_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Attacks: what is computed stays the same; a table for every precision."""
    yield from _kernels(records)
    yield Paragraph("Cells: cases that are good, and the largest difference of outputs, relative to the largest.")
    for (dtype,), part in groups(records, "dtype"):
        yield Heading(dtype)
        yield _table_by_attack(part, "error")
    yield from complaints(records)


def restored_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Recovery: shapes, logits, times; one row for every model and ratio."""
    timed = sorted(record.seconds["recover"] for record in records if "recover" in record.seconds)
    if timed:
        yield Paragraph(f"Recovery took {timed[len(timed) // 2]:.2g} s in the median, {timed[-1]:.2g} s at most.")
    yield from _kernels(records)
    yield Paragraph("Cells: cases that are good, and the largest relative difference of logits in float32.")
    yield _table_by_attack(records, "gap")
    yield from complaints(records)


def aligned_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Verification by way of the reference and of the layout key; one row for every model and ratio."""
    head = ("good", "worst residual, reference", "worst residual, key", "key, of the model's size")
    return _rows_by_model(
        head,
        records,
        lambda found: (
            _good_of(found),
            *(_largest(found, f"{way}_max_rel_err") for way in ("reference", "key")),
            f"{found[0].metrics['key_share']:.2%}",
        ),
    )


def folded_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Norms folded away; one row for every model and ratio."""
    return _rows_by_model(
        ("norms", "good", "worst residual, folded", "with the owner's scales, reference", "key"),
        records,
        lambda found: (
            str(found[0].metrics["norms"]),
            _good_of(found),
            *(_largest(found, f"{way}max_rel_err") for way in ("", "reference_", "key_")),
        ),
    )


def noisy_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Recovery from noisy weights: one row for every model, one column for every disturbance."""
    noises = distinct(record.case.noise for record in records)

    def row(name: str, part: Sequence[Record]) -> list[str]:
        cells = [values_of(by(part, noise=noise), "shapes") for noise in noises]
        return [name, *(f"{sum(cell)}/{len(cell)}" if cell else "" for cell in cells)]

    yield Paragraph("Cells: models that come back with every clean shape.")
    models = sorted(distinct(record.case.model for record in records))
    rows = [row(name, by(records, model=name)) for name in models]
    yield Table.of(("model", *noises), [*rows, row("all", records)])


POINTS: Final = {
    "dead_range": "units dead by the range of their inputs",
    "odd_group": "`u` with `−u`, in groups that cancel",
    "tiny_column": "columns of 1e-12 to 1e-30",
    "noisy_clique": "cliques whose readers carry noise of 1e-5",
    "constant": "constants, behind zero padding read by inner taps",
    "wide_basis": "linear bases widened, and copies of negative sign",
    "endless": "a shift of −inf on a ReLU unit",
    "grown_kernel": "kernels grown by zeros, in one axis or both",
    "idle_layer": "layers that do nothing, shuffled and scaled",
    "idle_branch": "branches that add zero",
}
"""The primitive that injects each kind of redundancy, and what it is."""


def point_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Kinds of hidden redundancy: a row for each, a column for every model."""
    models = distinct(record.case.model for record in records)
    yield Paragraph(
        "Cells: whether every tensor of the lean model has its clean shape again, and how far logits are from those of "
        "the clean model in float64, relative to the largest. *none*: the model has no place for it."
    )
    rows = [
        (POINTS.get(kind, kind), f"`{kind}`", *(_drift(by(part, model=model)) for model in models))
        for (kind,), part in groups(records, "attack")
    ]
    yield Table.of(("kind", "primitive", *models), rows)
    yield from complaints(records)


def _drift(records: Sequence[Record]) -> str:
    done = [record for record in records if record.outcome != "refused"]
    if not done:
        return "none" if records else ""
    drift = max((record.metrics["drift"] for record in done if "drift" in record.metrics), default=float("nan"))
    return f"{_good_of(done)}, {drift:.0e}"


def keysize_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """What layout keys hold: one row for every key."""

    def row(case: Any, found: Any) -> tuple[str, ...]:
        kind, exact = "robust" if case.robust else "default", f"{found['exact']} of {found['bytes']} bytes"
        return case.model, kind, exact, f"{found['rows']}", f"{found['share']:.1%}", f"{found['noise']:.2f}"

    head = ("model", "key", "exact numbers per channel", "coarse numbers per row", "of the model's size", "noise")
    return one_by_one(head, records, row)


def roundtrip_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """From safetensors through an attack and ONNX, and back: one row for every file."""

    def row(case: Any, found: Any) -> tuple[str, ...]:
        sizes = [f"{found[f'{file}_bytes'] / 1e6:.0f}" for file in ("suspect", "recovered")]
        gaps = [f"{found[f'{file}_gap']:.1e}" for file in ("suspect", "recovered")]
        worst = f"{found['max_rel_err']:.1e}"
        return case.model, case.norms, case.names, f"{found['verdict']}", worst, f"{found['layers']}", *sizes, *gaps

    head = (
        "model", "norms", "names", "verdict", "worst residual", "layers", "suspect, MB", "recovered, MB",
        "gap, suspect", "gap, recovered",
    )  # fmt: skip
    return one_by_one(head, records, row)


def rewritten_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Sequences of rewritings behind a disguise: one row for each."""

    def row(case: Any, found: Any) -> tuple[str, ...]:
        done = ", ".join(name.replace("_", " ") for name in found["rewritings"])
        answers = (found[way]["network"] for way in ("reference", "key"))
        return case.model, f"{case.seed}", f"{found['size']}", done, *answers

    return one_by_one(("model", "seed", "input", "rewritings", "by reference", "by key"), records, row)


def exported_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Hidden models through the tools that make ONNX files: a row for every way, a column for every model."""
    models = distinct(record.case.model for record in records)
    yield Paragraph(
        "Each cell has the answer to *same network?* by the reference and by the layout key; a dot: the file's outputs "
        "are not shown to be those of the reference, as rounding to int8 changes them; empty: not measured, which says "
        "nothing. Rows were measured while the code still changed."
    )
    rows = []
    for way, part in groups(records, "exporter", "norms", "then"):
        rows.append((*way, *(_answers(one(part, model=model)) for model in models)))
    yield Table.of(("exporter", "norms", "then", *models), rows)
    yield from complaints(records)


def _answers(record: Record | None) -> str:
    if record is None or record.outcome != "done":
        return "" if record is None else f"**{record.outcome}**"
    by_reference, by_key = (record.metrics[way]["network"] for way in ("reference", "key"))
    changed = " ·" if record.metrics["reference"]["function"] != "agree" else ""
    return f"{by_reference if by_reference == by_key else f'{by_reference}, {by_key}'}{changed}"


def family_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """Families of transformers: one row for each."""

    def row(case: Any, found: Any) -> tuple[str, ...]:
        seen = "100%" if found["seen"] == 1 else f"{found['seen']:.2%}"
        free, hidden = f"{found['free']} / {found['producers']}", f"{found['free_spaces']} / {found['hidden']}"
        words = ["yes" if found[key] else "no" for key in ("restored", "certified")]
        drift = f"{found['drift']:.0e}"
        return case.family, found["architecture"], found["front_end"], seen, free, hidden, drift, *words

    yield Paragraph(
        "*Seen*: share of the numbers that the forward pass uses with a place in the graph. *Free / hidden*: free "
        "spaces, and how many hidden spaces of MLPs, experts or gates the model has, each of which should be among "
        "them. *Drift*: how far outputs moved by the attack, of their range."
    )
    head = (
        "Family", "Class", "Front end", "Seen", "Free / producers", "Free / hidden", "Drift", "Restored", "Certified",
    )  # fmt: skip
    yield from one_by_one(head, records, row)
