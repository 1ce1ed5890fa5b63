"""How time and memory grow with the size of a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from canon.bench.records import Record
from canon.bench.tables.common import complaints, groups, measured
from canon.bench.tables.document import BAD, Block, Figure, Paragraph, Table
from canon_benchmarks.tables.figures import SETTINGS, pyplot, svg_of

SLOPE: Final = 1.1
"""The steepest that time may grow."""

HEAD = (
    "networks", "slope", "parameters", "seconds", "peak memory relative to the suspect", "what is made", "beside it",
)  # fmt: skip


def scale_blocks(suite: str, records: Sequence[Record]) -> Iterator[Block]:
    """The picture, and for every family its slope and the largest of it."""
    done = measured(records)
    if not done:
        return
    slopes = slopes_of(done)
    yield Figure(suite, "Time and peak memory over the number of parameters", draw_scale(done, slopes))
    yield Paragraph(f"Slopes of time over parameters, both as logarithms; 1 is linear, {SLOPE:g} the limit.")
    rows: list[tuple[str, ...]] = []
    for (family,), mine in groups(done, "family"):
        last = max((record.metrics for record in mine), key=lambda found: int(found["parameters"]))
        size = 4 * last["parameters"]
        share, made = last["peak_extra_bytes"] / size, last.get("made_bytes", 0) / size
        parts = (f"{share:.2f}", f"{made:.2f}", f"{share - made:.2f}") if made else (f"{share:.2f}", "", "")
        rows.append((family, _slope(slopes.get(family)), f"{last['parameters']:,}", f"{last['seconds']:.1f}", *parts))
    rows.append(("all", _slope(slopes.get("all")), *[""] * 5))
    yield Table.of(HEAD, rows)
    yield from complaints(records)


def _slope(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" + (f" {BAD}" if value > SLOPE else "")


def slopes_of(records: Sequence[Record]) -> dict[str, float]:
    """Of the logarithm of time over that of parameters: by family that has more than one size, and for all together."""
    several = {family: group for (family,), group in groups(records, "family") if len(group) > 1}
    if several:
        several["all"] = list(records)
    found = {}
    for name, group in several.items():
        x, y = (np.log([record.metrics[figure] for record in group]) for figure in ("parameters", "seconds"))
        found[name] = round(float(np.polyfit(x, y, 1)[0]), 3)
    return found


def draw_scale(records: Sequence[Record], slopes: dict[str, float]) -> str:
    """Time and peak memory, both over the number of parameters."""
    plot = pyplot()
    with plot.rc_context(SETTINGS):
        figure, (left, right) = plot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
        for (family,), group in groups(records, "family"):
            mine = sorted((r.metrics for r in group), key=lambda found: int(found["parameters"]))
            size = [found["parameters"] for found in mine]
            label = f"{family}, slope {slopes[family]:.2f}" if family in slopes else family
            left.loglog(size, [found["seconds"] for found in mine], marker="o", markersize=4, label=label)
            shares = [found["peak_extra_bytes"] / (4 * found["parameters"]) for found in mine]
            right.semilogx(size, shares, marker="o", markersize=4, label=family)
        step = records[0].case.step
        about = "parameters of the attacked model"
        left.set(xlabel=about, ylabel=f"seconds to {step}", title="Time")
        right.set(xlabel=about, ylabel="relative to the attacked model", title="Peak memory")
        right.set_ylim(0, max(1.0, right.get_ylim()[1]))
        left.legend(fontsize=8, frameon=False)
        return svg_of(plot, figure)
