"""The grid of folded suspects: what is kept says that all cases are good, and the page says what is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from canon_benchmarks import folded_grid
from canon_benchmarks.folded_grid import MODELS, OUT, page
from canon_benchmarks.model_grid import GridCase
from canon_benchmarks.subjects import VARIANTS

ROOT = Path(__file__).parents[2]


def test_the_kept_page_is_made_from_the_kept_records() -> None:
    records = json.loads((ROOT / OUT).read_text(encoding="utf-8"))["records"]
    assert {(record["model"], record["variant"]) for record in records} == {(m, v) for m in MODELS for v in VARIANTS}
    assert all(record["good"] and record["max_rel_err"] <= folded_grid.LIMIT for record in records)
    assert (ROOT / OUT).with_suffix(".md").read_text(encoding="utf-8") == page(records)


@pytest.mark.slow
def test_a_case_is_measured() -> None:
    record = folded_grid.measure(GridCase("densenet121", "nso_zero", 0.2, 1))
    assert record["good"], record
    assert record["norms"] == 59
