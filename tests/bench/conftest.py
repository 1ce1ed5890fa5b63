"""Tests of the benchmark know the suites of this checkout, whether or not they are installed."""

import canon_benchmarks  # noqa: F401
