"""Limits of time that a slow or busy machine does not break, and an endless computation does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

USUAL = 0.03
"""Seconds of the processor that `_work` takes on a machine of the year 2026."""


def _work() -> float:
    started = time.process_time()
    names = {str(number): number for number in range(100_000)}
    assert sum(names[str(number)] for number in range(100_000)) == 4_999_950_000
    return time.process_time() - started


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """What is done here takes no more than these seconds of the processor, on a slower machine as many times more."""
    started = time.process_time()
    yield
    taken = time.process_time() - started
    if taken >= seconds:
        slower = max(1.0, max(_work() for _ in range(3)) / USUAL)
        assert taken < seconds * slower, f"took {taken:.1f} s, and {seconds * slower:.1f} s are allowed"
