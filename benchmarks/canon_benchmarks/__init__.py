"""The measurements behind Canon's documentation: suites, grids, times and pages.

Importing this package makes its kinds of cases and its suites known to `canon.bench`; `canon bench list` lists them.
"""

from __future__ import annotations

from typing import Final

from canon.bench.extensions import Extension, extend
from canon_benchmarks import cases

PAGES: Final = {
    "grids": (
        "kept", "restored", "aligned", "folded", "noisy", "point", "keysize", "roundtrip", "rewritten", "exported",
        "family",
    ),
    "timed": ("cost", "profiled", "large"),
    "learned": ("start", "wrong", "extractor", "probing"),
}  # fmt: skip
"""Files of `tables` that show several kinds of cases."""

EXTENSION: Final = Extension(
    "canon_benchmarks",
    tuple(str(vars(case)["kind"]) for case in vars(cases).values() if isinstance(case, type) and "kind" in vars(case)),
    suites="canon_benchmarks.suites",
    blocks={
        "recovery": "canon_benchmarks.tables.recovery:recovery_blocks",
        **{kind: f"canon_benchmarks.tables.{page}:{kind}_blocks" for page, kinds in PAGES.items() for kind in kinds},
    },
    pages="canon_benchmarks.tables.landing:first_pages",
    remark="canon_benchmarks.tables.widths:widths_remark",
    mlflow="canon_benchmarks.mlflow:log_to_mlflow",
    html="canon_benchmarks.tables.html:to_html",
    executors={"ray": "canon_benchmarks.cluster:RayCluster"},
)

extend(EXTENSION)
