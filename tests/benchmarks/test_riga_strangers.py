"""An extractor that never saw unmarked weights says the message wherever channels lie; ours does not."""

from __future__ import annotations

import pytest

from canon_benchmarks.cases import Extractor
from canon_benchmarks.measures import extractor
from tests.benchmarks.measured import measured


def test_what_an_extractor_never_saw_it_takes_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extractor, "STRANGERS", 0)
    never, often = (measured(Extractor(weight=weight, seed=0)).metrics for weight in (0.0, 10.0))
    assert never["own"] == often["own"] == 1.0
    assert never["recovered_alone"] > 0.9
    assert often["recovered_alone"] < 0.7
