"""The owner's network in attacked and then changed models: for each of what the owner brings, model by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from canon.bench.records import Record
from canon.bench.suite import load_suite
from canon.bench.tables.common import complaints, distinct, groups, measured
from canon.bench.tables.document import Block, Heading, Items, Paragraph, Table
from canon_benchmarks.measures.changed import BY_ROBUST_KEY, RELATED, WAYS
from canon_benchmarks.measures.contained import STEPS, WANTED, reached
from canon_benchmarks.subjects import VARIANTS

NAMES: Final = {"reference": "the owner's model", "key": "the layout key", "robust": "the robust layout key"}


def contained_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """The grid in one paragraph, a table for each of what the owner brings, and what is missing."""
    run = measured(records)
    yield Paragraph(
        "Cells: the least share of the owner's channels that was found, over all attacks of the row. Noise is relative "
        "to each weight, or to the spread of its tensor; 8 bits are symmetric, one step per tensor. Rows were measured "
        "one after the other, by several states of the code."
    )
    yield Paragraph(_summary([step for record in run for step in _steps(record).values()], len(run)))
    for way in WAYS:
        target = f"wanted at least {WANTED[way]:g}" if way in WANTED else "no target"
        yield Heading(f"By {NAMES[way]}, {target}")
        for title, paper in (("attacks of the paper", True), ("attacks that leave nothing redundant", False)):
            if chosen := [record for record in run if (record.case.attack in VARIANTS) == paper]:
                yield Table.of((title, "ρ", "cases", *STEPS), tuple(_rows(chosen, way)))
    yield from complaints(records, _missed)
    known = {record.case.name for record in records}
    left: list[Any] = [case for case in load_suite(suite).cases if case.name not in known]
    if left:
        yield Heading("What was not run")
        yield Items(tuple(
            f"{model}, ρ = {ratio:g}: "
            + ", ".join(case.attack for case in left if (case.model, case.ratio) == (model, ratio))
            for model, ratio in distinct((case.model, case.ratio) for case in left)
        ))  # fmt: skip


def _steps(record: Record) -> dict[str, Any]:
    steps: dict[str, Any] = record.metrics["steps"]
    return steps


def _summary(cells: Sequence[dict[str, Any]], models: int) -> str:
    parts = [f"{models} attacked models, {len(cells)} suspects."]
    for way, wanted in WANTED.items():
        good = sum(reached(cell[way], way) for cell in cells)
        parts.append(f"By {NAMES[way]} {good} of {len(cells)} reach {wanted:g} and are found.")
    found = sum(cell["key"][1] in RELATED for cell in cells)
    enough = sum(cell["key"][0] >= BY_ROBUST_KEY for cell in cells)
    parts.append(f"By {NAMES['key']} {found} are found, {enough} of them with a coverage of {BY_ROBUST_KEY:g} or more.")
    return " ".join(parts)


def _rows(records: Sequence[Record], way: str) -> Iterator[tuple[str, ...]]:
    for (model, ratio), mine in groups(records, "model", "ratio"):
        cells = [_cell([_steps(record)[step][way] for record in mine], way) for step in STEPS]
        yield model, f"{ratio:g}", str(len(mine)), *cells


def _cell(found: Sequence[tuple[float, str]], way: str) -> str:
    """The least coverage; in bold, with the number of cases, where some miss the target."""
    least = min(coverage for coverage, _ in found)
    missed = sum(not reached(one, way) for one in found)
    if missed and way in WANTED:
        return f"**{least:.3f}** ({missed} miss)"
    return f"{least:.3f}" + (f" ({missed} not found)" if missed else "")


def _missed(record: Record) -> str:
    return "; ".join(
        f"{step}, by {NAMES[way]}: {found[way][0]:g}, {found[way][1]}"
        for step, found in _steps(record).items()
        for way in WANTED
        if not reached(found[way], way)
    )
