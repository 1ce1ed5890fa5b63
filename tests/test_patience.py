"""The limits of time of the tests: they must not be endless."""

from __future__ import annotations

import time

import pytest

from tests.patience import within


def test_what_takes_longer_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="are allowed"), within(1e-6):
        sum(range(3_000_000))


def test_what_waits_for_others_takes_nothing() -> None:
    with within(0.1):
        time.sleep(0.2)
