"""Curves of what is found of a network as its weights are changed more and more."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any, Final

from canon.bench.records import Record
from canon.bench.tables.common import by, distinct, values_of
from canon_benchmarks.cases import UNCHANGED
from canon_benchmarks.measures.changed import KEPT
from canon_benchmarks.tables.figures import SETTINGS, pyplot, svg_of

CHANGES: Final = {
    "noise:relative=": "noise, of each weight",
    "noise:absolute=": "noise, of the tensor's spread",
    "prune=": "share pruned",
    "round=": "bits",
    "finetune:epochs=2,rate=": "two epochs, rate",
}
"""How a step's text begins, and what its number is."""

LINES: Final = {
    "coverage, owner's model": ("reference_coverage", {"color": "#0072b2", "marker": "o"}),
    "coverage, robust key": ("robust_coverage", {"color": "#009e73", "marker": "s"}),
    "coverage, key": ("key_coverage", {"color": "#b8860b", "marker": "^"}),
    "bits of the mark": ("bits", {"color": "#cc79a7", "marker": "D"}),
    "accuracy": ("accuracy", {"color": "#555555", "marker": ".", "linestyle": "--"}),
}


def draw_changed(records: Sequence[Record]) -> str:
    """A row for each kind of change, a column for each architecture."""
    plot: Any = pyplot()
    models = distinct(record.case.model for record in records)
    changes = [start for start in CHANGES if any(r.case.after.startswith(start) for r in records)]
    with plot.rc_context(SETTINGS):
        size = (2.6 * len(models) + 0.4, 1.9 * len(changes) + 0.6)
        figure, grid = plot.subplots(len(changes), len(models), figsize=size, squeeze=False, sharey=True)
        shown: dict[str, Any] = {}
        for row, (place, start) in zip(grid, enumerate(changes), strict=True):
            for axes, model in zip(row, models, strict=True):
                mine = by(records, model=model)
                steps = [UNCHANGED, *(s for s in distinct(r.case.after for r in mine) if s.startswith(start))]
                _curves(axes, [by(mine, after=step) for step in steps], shown)
                axes.set_xticks(range(len(steps)), ["none", *(step.removeprefix(start) for step in steps[1:])])
                axes.set_ylim(-0.03, 1.05)
                axes.set_xlabel(CHANGES[start], fontsize=8)
                if place == 0:
                    axes.set_title(model, fontsize=9)
        figure.legend(shown.values(), shown.keys(), loc="lower center", ncols=len(LINES), frameon=False, fontsize=8)
        figure.tight_layout(rect=(0, 0.4 / size[1], 1, 1))
        return svg_of(plot, figure)


def _curves(axes: Any, groups: Sequence[Sequence[Record]], shown: dict[str, Any]) -> None:
    for label, (metric, style) in LINES.items():
        heights = [_mean(group, metric) for group in groups]
        shown[label] = axes.plot(range(len(groups)), heights, markersize=3.5, linewidth=1.2, **style)[0]
    for place, group in enumerate(groups):
        if group and _mean(group, "accuracy") < _mean(group, "clean_accuracy") - KEPT:
            axes.axvline(place, color="#d55e00", linestyle=":", linewidth=1.1)
            break


def _mean(records: Sequence[Record], metric: str) -> float:
    found = bit_shares(records) if metric == "bits" else values_of(records, metric)
    return mean(found) if found else float("nan")


def bit_shares(records: Sequence[Record]) -> list[float]:
    """Share of right bits in every record that read some."""
    pairs: list[tuple[Any, Any]] = [
        (record.metrics["reference_matched"], record.metrics["reference_total"])
        for record in records
        if record.metrics.get("reference_total")
    ]
    return [matched / total for matched, total in pairs]
