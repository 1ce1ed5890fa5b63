"""An extractor that never saw unmarked weights says the message wherever channels lie; ours does not."""

from __future__ import annotations

from canon_benchmarks.riga_strangers import measure
from canon_benchmarks.wrong_keys import small_data


def test_what_an_extractor_never_saw_it_takes_for_its_own() -> None:
    data = small_data()
    never, often = (measure(weight, 0, data, []) for weight in (0.0, 10.0))
    assert never.own == often.own == 1.0
    assert never.recovered_alone > 0.9
    assert often.recovered_alone < 0.7
