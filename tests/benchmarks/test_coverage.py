"""Which models trace: records, and the table made from them."""

from __future__ import annotations

import pytest
import torch

from canon_benchmarks.cases import Traced
from canon_benchmarks.measures.traced import torchvision_names
from canon_benchmarks.patterns import PATTERNS
from tests.benchmarks.measured import committed, measured, page
from tests.preservation import check_preserved, randomize


def test_the_table_shows_counts_pins_and_failures() -> None:
    found = measured(Traced(source="torchvision", model="squeezenet1_1"))
    assert found.metrics["free"] == found.metrics["total"] - 1
    assert found.metrics["version"]
    lost = measured(Traced(source="timm", model="no_such_model"))
    assert lost.outcome == "failed"
    text = page(found, lost)
    assert "| squeezenet1_1 | 25 / 26 | 25 / 26 | 0 | fx | model output ×1 |" in text
    assert "1 of 1 models trace." in text
    assert "0 of 1 models trace." in text
    assert "- no_such_model: " in text


def test_the_records_in_the_docs_hold_every_model_of_torchvision() -> None:
    found = {r.case.model: r.outcome for r in committed("coverage") if r.case.source == "torchvision"}
    assert set(found) == set(torchvision_names())
    assert set(found.values()) == {"done"}


@pytest.mark.parametrize("name", PATTERNS)
def test_what_is_written_by_hand_keeps_its_function(name: str) -> None:
    example = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    graph = check_preserved(randomize(PATTERNS[name]()), example, one_by_one=False)
    pinned = {linear.weight for linear in graph.maps if any(graph.spaces[row.space].pins for row in linear.rows)}
    head = 1 if name.startswith("resnet") else 5  # a detector's last layers: two of boxes, two of classes, the mean
    assert len(pinned) == head
