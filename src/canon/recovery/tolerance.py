"""Tolerances, derived from the precision in which the model is stored."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Tolerance:
    """What counts as equal and what counts as zero."""

    equal: float
    """Largest disagreement of two signatures of one signal. Distinct channels of real networks are 0.07 or more apart."""

    zero: float
    """A sum is zero if it is this small against the sum of the magnitudes in it."""

    rounding: float
    """What the stored precision alone does to a sum."""

    @staticmethod
    def of(dtype: torch.dtype) -> Tolerance:
        """For weights stored in this dtype.

        A float32 file may have been through float16, so its tolerance allows for that.
        """
        rounding = float(torch.finfo(dtype).eps)
        if dtype == torch.bfloat16:
            return Tolerance(equal=3e-2, zero=1e-2, rounding=rounding)
        return Tolerance(equal=5e-3, zero=1e-3, rounding=rounding)

    @staticmethod
    def for_model(model: nn.Module) -> Tolerance:
        """For the coarsest precision among a model's parameters."""
        dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
        if not dtypes:
            return Tolerance.of(torch.float32)
        return Tolerance.of(max(dtypes, key=lambda dtype: torch.finfo(dtype).eps))
