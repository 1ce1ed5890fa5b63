"""Every small network: what is free keeps the function under every rewrite, what is pinned says why."""

from __future__ import annotations

import pytest

from tests.networks import Case
from tests.pinned import CASES
from tests.preservation import check_preserved, randomize


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_free_spaces_keep_the_function_and_pins_say_why(case: Case) -> None:
    graph = check_preserved(randomize(case.build()), case.example())
    assert tuple(space.name for space in graph.free) == case.free
    for name, reason in case.pins.items():
        space = graph.space_named(name)
        pinned = space.pinned or space.rigid
        assert pinned is not None, f"'{name}' is free"
        assert reason in pinned
