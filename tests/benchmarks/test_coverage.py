"""Coverage records and the table made from them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from canon_benchmarks import coverage
from canon_benchmarks.coverage import Coverage, main, measure, render
from canon_benchmarks.patterns import PATTERNS
from tests.preservation import check_preserved, randomize

DOCS = Path(__file__).parents[2] / "docs"


def test_a_failure_is_a_record_with_a_reason() -> None:
    record = measure("no_such_model", "timm")
    assert record.failure is not None
    assert record.failure.startswith("could not be built or traced:")
    assert record.total == 0


def test_the_table_shows_counts_pins_and_failures() -> None:
    records = [
        Coverage("resnet18", "torchvision", "fx", 20, 21, 12, 13, 0, (("model output", 1),)),
        Coverage("odd", "timm", failure="the forward pass cannot be traced"),
    ]
    text = render(records)
    assert "| resnet18 | 20 / 21 | 12 / 13 | 0 | fx | model output ×1 |" in text
    assert "1 of 1 models trace." in text
    assert "0 of 1 models trace." in text
    assert "- odd: the forward pass cannot be traced" in text
    assert "- vit_h_14: more than 150 million parameters" in text


def test_the_command_measures_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "torchvision_names", lambda: ("squeezenet1_1",))
    monkeypatch.setattr(coverage, "timm_names", lambda: ("test_resnet",))
    main(["--docs", str(tmp_path)])
    saved = json.loads((tmp_path / "results" / "coverage.json").read_text(encoding="utf-8"))
    assert [record["name"] for record in saved["records"]] == ["squeezenet1_1", "test_resnet", *PATTERNS]
    assert set(saved["versions"]) == {"torch", "torchvision", "timm"}
    table = (tmp_path / "coverage.md").read_text(encoding="utf-8")
    (tmp_path / "coverage.md").unlink()
    main(["--docs", str(tmp_path), "--render"])
    assert (tmp_path / "coverage.md").read_text(encoding="utf-8") == table


def test_the_table_in_the_docs_is_made_from_the_records() -> None:
    records = coverage.load(DOCS / "results" / "coverage.json")
    assert (DOCS / "coverage.md").read_text(encoding="utf-8") == render(records)
    torchvision = [record for record in records if record.source == "torchvision"]
    assert len(torchvision) == 80
    assert [record.name for record in torchvision if record.failure] == []
    assert {record.name for record in records if record.source == "timm"} == set(coverage.timm_names())


@pytest.mark.parametrize("name", PATTERNS)
def test_what_is_written_by_hand_keeps_its_function(name: str) -> None:
    example = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    graph = check_preserved(randomize(PATTERNS[name]()), example, one_by_one=False)
    pinned = {linear.weight for linear in graph.maps if any(graph.spaces[row.space].pins for row in linear.rows)}
    head = 1 if name.startswith("resnet") else 5  # a detector's last layers: two of boxes, two of classes, the mean
    assert len(pinned) == head


def test_records_survive_saving() -> None:
    record = Coverage("a", "timm", "fx", 1, 2, 1, 2, 0, (("model output", 1),))
    plain = json.loads(json.dumps(asdict(record)))
    assert Coverage(**{**plain, "pins": tuple(map(tuple, plain["pins"]))}) == record
