"""p-values and the Tier 2 predicate."""

from __future__ import annotations

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canon.errors import VerificationError
from canon.verify.mark import FRACTION, SLACK, Tier2, p_value


@given(st.integers(1, 200), st.data())
def test_the_p_value_is_the_binomial_tail(total: int, data: st.DataObject) -> None:
    matched = data.draw(st.integers(0, total))
    exact = sum(comb(total, k) for k in range(matched, total + 1)) / 2**total
    assert p_value(matched, total) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize(("matched", "total"), [(5, 4), (-1, 4), (0, 0)])
def test_impossible_counts_are_refused(matched: int, total: int) -> None:
    with pytest.raises(VerificationError, match="cannot be right"):
        p_value(matched, total)


@pytest.mark.parametrize(
    ("clean", "attacked", "recovered", "passed"),
    [
        (1.0, 0.5, 1.0, True),
        (1.0, 0.5, 0.94, True),
        (1.0, 0.5, 0.92, False),
        (1.0, 0.5, 0.5, False),
        (1.0, 1.0, 1.0, True),
        (0.9, 1.0, 0.99, True),
        (0.9, 1.0, 0.9, False),
    ],
)
def test_the_predicate(clean: float, attacked: float, recovered: float, passed: bool) -> None:
    assert Tier2(clean, attacked, recovered).passed is passed


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_the_predicate_is_the_papers(clean: float, attacked: float, recovered: float) -> None:
    expected = recovered - attacked >= FRACTION * max(0.0, clean - attacked) - SLACK
    assert Tier2(clean, attacked, recovered).passed is expected


def test_parameters_out_of_range_are_refused() -> None:
    with pytest.raises(VerificationError, match="λ"):
        Tier2(1, 0, 1, fraction=0)
    with pytest.raises(VerificationError, match="δ"):
        Tier2(1, 0, 1, slack=-0.1)
