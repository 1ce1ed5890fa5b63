"""All forged and skeleton keys: `FORGERIES` and `SKELETONS`, by scheme. See `tests.liars.tables`."""

from __future__ import annotations

from tests.liars import activations, passports, projections, signed, sparsity  # noqa: F401  they fill the tables
from tests.liars.tables import FORGERIES, SKELETONS, Forger

__all__ = ["FORGERIES", "SKELETONS", "Forger"]
