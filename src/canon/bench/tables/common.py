"""What the pages of all suites share."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from canon.bench.cases import CLEAN
from canon.bench.records import Record
from canon.bench.tables.document import Block, Heading, Items, Paragraph

ATTACKS: Final = {
    "nso_zero": "zero",
    "nso_clique": "clique",
    "nso_split": "split",
    "mix-opseq": "mix-opseq",
    "mix-opseq-per-merge-group": "mix-opseq (per merge group)",
}
"""The paper's order and its names for the heads of columns."""

CANONICAL: Final = "°"
"""Ends a cell whose certificate holds on canonical forms only."""

UNMEASURED: Final = "·"
"""A cell without a record."""


def distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in the order of its first appearance."""
    return list(dict.fromkeys(values))


def by(records: Iterable[Record], **wanted: object) -> list[Record]:
    """The records whose case has these values."""
    return [r for r in records if all(getattr(r.case, name) == value for name, value in wanted.items())]


def measured(records: Iterable[Record]) -> list[Record]:
    """The records of cases that were measured: neither refused nor failed."""
    return [record for record in records if record.outcome == "done"]


def groups(records: Iterable[Record], *names: str) -> Iterator[tuple[tuple[Any, ...], list[Record]]]:
    """The records with equal values of these fields of their cases, after these values, in the order in which they
    first appear."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(getattr(record.case, name) for name in names), []).append(record)
    yield from found.items()


def values_of(records: Iterable[Record], metric: str) -> list[Any]:
    """A metric's values where it was measured."""
    return [r.metrics[metric] for r in records if r.metrics.get(metric) is not None]


def attacks_of(records: Sequence[Record]) -> list[str]:
    """The attacks that there are records of: the paper's in its order, then others."""
    present = distinct(record.case.attack for record in records if hasattr(record.case, "attack"))
    others = [attack for attack in present if attack not in ATTACKS and attack != CLEAN]
    return [attack for attack in ATTACKS if attack in present] + others


def attack_name(attack: str) -> str:
    """What the head of a column says."""
    return ATTACKS.get(attack, attack)


def one(records: Sequence[Record], **wanted: object) -> Record | None:
    """The record whose case has these values, if there is one."""
    found = by(records, **wanted)
    return found[0] if found else None


def unmeasured(record: Record | None) -> str | None:
    """What a cell says in place of figures: not run, refused or failed; None where there are figures."""
    if record is None:
        return UNMEASURED
    return None if record.outcome == "done" else f"**{record.outcome}**"


def all_of(records: Sequence[Record], metric: str, wanted: object) -> str:
    """How many records have this value of a metric, of how many."""
    found = values_of(records, metric)
    return f"{sum(value == wanted for value in found)}/{len(found)}"


def took(records: Iterable[Record], stage: str = "recover") -> str:
    """The seconds that a stage took: median and largest."""
    seconds = [record.seconds[stage] for record in records if stage in record.seconds]
    return f"{statistics.median(seconds):.2g}, {max(seconds):.2g}" if seconds else UNMEASURED


def worst(records: Sequence[Record], metric: str) -> str:
    """The largest value of a metric."""
    found = values_of(records, metric)
    return f"{max(found):.2g}" if found else UNMEASURED


def canonical_only(record: Record) -> bool:
    """Whether Tier 1 passes on canonical forms alone, not on the models themselves."""
    return record.metrics.get("tier1_canonical") is True and record.metrics.get("tier1_passed") is True


def passes(records: Sequence[Record]) -> str:
    """How many pass Tier 1 on the models themselves, of how many; what passes on canonical forms alone stands apart."""
    measured = [record for record in records if record.metrics.get("tier1_passed") is not None]
    apart = sum(map(canonical_only, measured))
    right = sum(record.metrics["tier1_passed"] is True for record in measured) - apart
    return f"{right}/{len(measured)}" + (f" +{apart}{CANONICAL}" if apart else "")


def outcomes(records: Sequence[Record], expected: int) -> Paragraph:
    """How many cases were measured, and how many came out as they should."""
    done = measured(records)
    parts = [f"{len(records)} of {expected} cases have a record"]
    for outcome in ("refused", "failed"):
        number = sum(record.outcome == outcome for record in records)
        if number:
            parts.append(f"{number} {outcome}")
    judged = [record for record in done if "good" in record.metrics]
    if judged:
        apart = sum(record.good and canonical_only(record) for record in judged)
        right = sum(record.good for record in judged) - apart
        parts.append(f"{right} of {len(judged)} measured ones came out as they should")
        if apart:
            parts.append(f"{apart} more, marked {CANONICAL}, are certified on canonical forms only")
    return Paragraph("; ".join(parts) + ".")


def machines(records: Sequence[Record]) -> Paragraph:
    """What the records were made with."""
    found = Counter(
        f"{e['device']} ({e['machine']}; Canon {e['canon']}, torch {e['torch']}, Python {e['python']})"
        for e in (record.environment for record in records)
        if e
    )
    named = [machine if len(found) == 1 else f"{machine}: {count} records" for machine, count in found.most_common()]
    if not named:
        return Paragraph("The records do not say where they were measured." if records else "Measured nowhere yet.")
    return Paragraph(f"Measured on {'; '.join(named)}.")


def complaints(
    records: Sequence[Record],
    reason: Callable[[Record], str] = lambda _record: "not as it should be",
    title: str = "What did not come out as it should",
) -> Iterator[Block]:
    """The end of a page: one line for every record that is refused, failed, or not as it should be."""
    lines = []
    for record in records:
        if record.outcome != "done":
            lines.append(f"`{record.case.name}` {record.outcome}: {record.error}")
        elif not record.good:
            lines.append(f"`{record.case.name}`: {reason(record)}")
    if lines or any("good" in record.metrics for record in records):
        yield Heading(title)
        yield Items(tuple(lines)) if lines else Paragraph("Nothing.")
