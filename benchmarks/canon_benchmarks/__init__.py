"""The measurements behind Canon's documentation: suites, grids, times and pages.

`python -m canon_benchmarks` lists them. Importing this package makes its kinds of cases and its suites
known to `canon.bench`.
"""

from __future__ import annotations

from typing import Final

from canon.bench.extensions import Extension, Kind, extend


def _kind(case: str, measure: str, blocks: str) -> Kind:
    home = "canon_benchmarks"
    return Kind(f"{home}.cases:{case}", f"{home}.measures.{measure}", f"{home}.tables.{blocks}")


EXTENSION: Final = Extension(
    "canon_benchmarks",
    {
        "methods": _kind("Methods", "methods:measure_methods", "methods:methods_blocks"),
        "tolerance": _kind("Tolerance", "tolerance:measure_tolerance", "tolerance:tolerance_blocks"),
        "changed": _kind("Changed", "changed:measure_changed", "changed:changed_blocks"),
        "clean": _kind("Clean", "clean:measure_clean", "clean:clean_blocks"),
        "runtime": _kind("Runtime", "runtime:measure_runtime", "runtime:runtime_blocks"),
        "baseline": _kind("Baseline", "baselines:measure_baseline", "baselines:baseline_blocks"),
    },
    suites="canon_benchmarks.suites",
    blocks={"recovery": "canon_benchmarks.tables.recovery:recovery_blocks"},
    pages="canon_benchmarks.tables.landing:first_pages",
    remark="canon_benchmarks.tables.widths:widths_remark",
)

extend(EXTENSION)
