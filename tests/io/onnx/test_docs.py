"""The page about ONNX says what is true of the code and of the records."""

from __future__ import annotations

import re
from pathlib import Path

from canon.io.onnx.operators import operator_names
from canon.io.onnx.parse import NEWEST, OLDEST
from tests.benchmarks.measured import committed

DOCS = Path(__file__).parents[3] / "docs"


def part(name: str) -> str:
    """What stands between the marks of a part."""
    page = (DOCS / "onnx.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- end of {name} -->", page, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_all_operators_are_listed() -> None:
    assert tuple(re.split(r",\s+", part("operators").strip().rstrip("."))) == operator_names()
    assert f"Operator sets {OLDEST} to {NEWEST}" in (DOCS / "onnx.md").read_text(encoding="utf-8")


def test_the_records_of_files_are_as_the_page_says() -> None:
    found = [(record.case, record.metrics) for record in committed("onnx_files")]
    assert len({case.package for case, metrics in found if metrics["result"] == "unchanged"}) >= 5
    for _, metrics in found:
        assert metrics["result"] in ("unchanged", "refused") or metrics.get("found")
        for kinds in metrics.get("found", {}).values():  # what was removed is dead in the file itself
            assert kinds["dead"] >= sum(count for kind, count in kinds.items() if kind != "dead")
