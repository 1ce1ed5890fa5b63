"""The table of families: one of each kind is measured as the page says."""

from __future__ import annotations

import pytest

from canon.bench.suite import load_suite
from canon_benchmarks.cases import Family
from canon_benchmarks.families import FAMILIES
from tests.benchmarks.measured import measured, page


def test_a_recurrent_family_comes_through() -> None:
    found = measured(Family(family="GRU"))
    assert found.good, found.error
    assert found.metrics["seen"] == 1
    assert "| GRU | GRU | fx | 100% |" in page(found)


def test_there_are_as_many_families_as_promised() -> None:
    assert len(FAMILIES) >= 60
    assert [case.values["family"] for case in load_suite("families").cases] == list(FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Phi-3", "ViT"])
def test_transformers_come_through(name: str) -> None:
    pytest.importorskip("transformers")
    found = measured(Family(family=name))
    assert found.good, found.error
    assert found.metrics["seen"] == 1
    assert found.metrics["free_spaces"] >= found.metrics["hidden"]
