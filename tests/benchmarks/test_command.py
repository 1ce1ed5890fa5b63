"""What every suite and every kind of case has."""

from __future__ import annotations

import pytest

from canon.bench.extensions import kinds, part_of
from canon.bench.suite import check_suite, load_suite, suite_names


@pytest.mark.parametrize("name", suite_names())
def test_every_suite_names_what_exists(name: str) -> None:
    suite = load_suite(name)
    check_suite(suite)
    assert len({case.name for case in suite.cases}) == len(suite.cases)


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_has_its_three_parts(kind: str) -> None:
    assert part_of(kind, "case").kind == kind
    assert callable(part_of(kind, "measure"))
    assert callable(part_of(kind, "blocks"))
