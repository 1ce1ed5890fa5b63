"""The plot of time and memory over the size of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from canon._files import atomic_path
from canon.errors import MissingExtraError


def plot(
    records: Sequence[Mapping[str, Any]], slopes: Mapping[str, float], target: Path, step: str = "recover"
) -> None:
    """Draw time and peak memory, and write the picture.

    Args:
        records: As `canon_benchmarks.scale` measures them.
        slopes: By family.
        target: An SVG file.
        step: What was measured: `recover` or `locate`.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "canon"  # the same picture has the same bytes
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    for family in dict.fromkeys(record["family"] for record in records):
        mine = sorted((r for r in records if r["family"] == family), key=lambda r: r["parameters"])
        size = [record["parameters"] for record in mine]
        label = f"{family}, slope {slopes[family]:.2f}" if family in slopes else family
        left.loglog(size, [record["seconds"] for record in mine], marker="o", markersize=4, label=label)
        shares = [record["peak_extra_bytes"] / (4 * record["parameters"]) for record in mine]
        right.semilogx(size, shares, marker="o", markersize=4, label=family)
    left.set(xlabel="parameters of the attacked model", ylabel=f"seconds to {step}", title="Time")
    right.set(xlabel="parameters of the attacked model", ylabel="relative to the attacked model", title="Peak memory")
    right.set_ylim(0, max(1.0, right.get_ylim()[1]))
    for axes in (left, right):
        axes.grid(visible=True, which="major", alpha=0.3)
    left.legend(fontsize=8, frameon=False)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(target, force=True) as place:
        figure.savefig(place, format="svg", metadata={"Date": None})
    pyplot.close(figure)
