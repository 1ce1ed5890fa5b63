"""Drawings of records, as SVG text that is the same every time."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from canon.bench.records import Record
from canon.bench.tables.common import ATTACKS, by, distinct
from canon.errors import import_extra

COLOURS: Final = {
    "clean": "#555555",
    "zero": "#0072b2",
    "clique": "#d55e00",
    "split": "#009e73",
    "mix-opseq": "#cc79a7",
    "mix-opseq (per merge group)": "#b8860b",
}
"""By attack; colours that people with any colour vision can tell apart."""

MARKERS: Final = dict(zip(COLOURS, ".osD^v", strict=True))

SETTINGS: Final = {
    "svg.hashsalt": "canon",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "axes.axisbelow": True,
}


@dataclass(frozen=True)
class Panel:
    """One plot of a figure: a line per label over common ticks, and a level per label."""

    title: str
    ticks: Sequence[str]
    lines: Mapping[str, Sequence[float | None]]
    levels: Mapping[str, float | None]


def draw_lines(panels: Sequence[Panel], axis: str, *, slanted: bool = False) -> str:
    """Panels side by side, two in a row, with one legend; seconds upwards, from zero."""
    plot = pyplot()
    with plot.rc_context(SETTINGS):
        columns = min(2, len(panels))
        rows = -(-len(panels) // columns)
        figure, grid = plot.subplots(rows, columns, figsize=(4.6 * columns, 2.7 * rows + 0.6), squeeze=False)
        shown: dict[str, Any] = {}
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            places = range(len(panel.ticks))
            for label, line in panel.lines.items():
                heights = [float("nan") if value is None else value for value in line]
                style = {"color": COLOURS.get(label), "marker": MARKERS.get(label), "markersize": 4, "linewidth": 1.3}
                shown[label] = axes.plot(places, heights, label=label, **style)[0]
                level = panel.levels.get(label)
                if level is not None:
                    axes.axhline(level, color=COLOURS.get(label), linestyle="--", linewidth=0.9)
            axes.set_title(panel.title, fontsize=9)
            axes.set_xticks(list(places), panel.ticks, **({"rotation": 40, "ha": "right"} if slanted else {}))
            axes.set_ylim(bottom=0)
            axes.set_xlabel(axis)
            axes.set_ylabel("seconds")
        figure.legend(shown.values(), shown.keys(), loc="lower center", ncols=3, frameon=False)
        # The legend has two rows at most; what is above it belongs to the panels.
        figure.tight_layout(rect=(0, 0.55 / (2.7 * rows + 0.6), 1, 1))
        return svg_of(plot, figure)


STEPS: Final = (
    ("attacked_similarity", "under attack", {"color": "#d55e00", "marker": "x"}),
    ("recovered_similarity", "after recovery alone", {"color": "#888888", "marker": "o", "facecolors": "none"}),
    ("aligned_similarity", "after recovery and alignment", {"color": "#0072b2", "marker": "o"}),
)


def draw_similarity(records: Sequence[Record]) -> str:
    """Every case's similarity at the three steps, by scheme, one panel per architecture."""
    plot = pyplot()
    models = distinct(record.case.model for record in records)
    schemes = distinct(record.case.scheme for record in records)
    with plot.rc_context(SETTINGS):
        columns = min(2, len(models))
        rows = -(-len(models) // columns)
        height = 2.6 * rows + 0.5
        figure, grid = plot.subplots(rows, columns, figsize=(max(4.8 * columns, 7), height), squeeze=False, sharey=True)
        shown = {}
        for axes in grid.flat[len(models) :]:
            axes.set_visible(False)
        for axes, model in zip(grid.flat, models, strict=False):
            for offset, (metric, label, style) in enumerate(STEPS):
                points = [
                    (index + 0.22 * (offset - 1), float(value))
                    for index, scheme in enumerate(schemes)
                    for record in by(records, model=model, scheme=scheme)
                    if (value := record.metrics.get(metric)) is not None
                ]
                if points:
                    shown[label] = axes.scatter(*zip(*distinct(points), strict=True), s=14, linewidths=0.9, **style)
            axes.axhline(0.5, color="#999999", linewidth=0.8, linestyle=":")
            axes.set_title(model, fontsize=9)
            axes.set_xticks(range(len(schemes)), schemes, rotation=40, ha="right")
            axes.set_ylim(0.2, 1.05)
            axes.set_ylabel("similarity")
        figure.legend(shown.values(), shown.keys(), loc="lower center", ncols=3, frameon=False)
        figure.tight_layout(rect=(0, 0.35 / height, 1, 1))
        return svg_of(plot, figure)


def svg_of(plot: Any, figure: Any) -> str:
    """A figure as text, and closed."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    plot.close(figure)
    # matplotlib leaves white space at the ends of lines.
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def pyplot() -> Any:
    """matplotlib, drawing to files."""
    import_extra("matplotlib", "report").use("agg")
    return import_extra("matplotlib.pyplot", "report")


assert set(ATTACKS.values()) < set(COLOURS), "every attack has a colour"
