"""Benchmark a scheme: cases, suites, records and pages. `extensions` says how other packages add to it."""
