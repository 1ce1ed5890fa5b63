"""The table of families: one of each kind is measured as the page says."""

from __future__ import annotations

import pytest

from canon_benchmarks.families import FAMILIES, measure, page


def test_a_recurrent_family_comes_through() -> None:
    row = measure("GRU")
    assert row.problem is None
    assert row.seen == 1
    assert row.restored
    assert row.certified
    assert "| GRU | GRU | fx | 100% |" in page([row.__dict__])


def test_there_are_as_many_families_as_promised() -> None:
    assert len(FAMILIES) >= 60


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GPT-2", "Llama", "Phi-3", "ViT"])
def test_transformers_come_through(name: str) -> None:
    pytest.importorskip("transformers")
    row = measure(name)
    assert row.problem is None
    assert row.seen == 1
    assert row.free_spaces >= row.hidden
    assert row.certified
