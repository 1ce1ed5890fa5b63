"""The page about ONNX says what is true of the code and of the records."""

from __future__ import annotations

import json
import re
from pathlib import Path

from canon.io.onnx.operators import operator_names
from canon.io.onnx.parse import NEWEST, OLDEST
from canon_benchmarks.onnx_files import table

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


def test_the_table_of_files_is_that_of_the_records() -> None:
    records = json.loads((DOCS / "results/onnx_files.json").read_text(encoding="utf-8"))["records"]
    ordered = sorted(records, key=lambda record: (record["package"], record["file"]))
    assert part("files") == table(ordered)
    assert len({record["package"] for record in records if record["outcome"] == "unchanged"}) >= 5
    assert all(record["outcome"] in ("unchanged", "refused") for record in records if not record.get("found"))
    for record in records:
        for kinds in record.get("found", {}).values():  # what was removed is dead in the file itself
            assert kinds["dead"] >= sum(count for kind, count in kinds.items() if kind != "dead")
