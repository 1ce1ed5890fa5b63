"""Tier 1 on folded forms: rows times the scale of the norm behind them, which flips a row where it is negative.

A suspect whose norms were folded away holds such rows only. Compared like this, nothing but order and the scales of
spaces comes from the reference, and the scales of norms are compared along with the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from canon.rewrite import fold_norms
from canon.verify.certificate import Certificate, certify, compare
from canon.verify.matching import Matching


def certify_folded(
    model: nn.Module,
    reference: nn.Module,
    example: Tensor | tuple[Any, ...],
    tolerance: float,
    layers: Iterable[str] | None,
    *,
    matching: Matching = "nearest",
) -> Certificate:
    """Compare a recovered model with a reference, norms folded into the layers of both.

    Args:
        model: The suspect in the reference's form, from `conform`.
        reference: The owner's model.
        example: An input tensor or tuple of inputs.
        tolerance: Largest residual that passes.
        layers: The layers that count; None: all.
        matching: `nearest`, `greedy` or `optimal`.
    """
    names = None if layers is None else tuple(layers)
    found = certify(model, reference, example, tolerance, names, matching=matching)
    if found.alignment is None:
        return replace(found, folded=True)
    theirs = fold_norms(reference, example)
    ours = fold_norms(found.alignment.model, example, layers={pair.layer for pair in theirs.norms})
    if len(ours.norms) < len(theirs.norms):
        theirs = fold_norms(reference, example, layers={pair.layer for pair in ours.norms})
    aligned = replace(found.alignment, write=lambda: ours.model)
    again = compare(aligned, theirs.model, example, tolerance, names, matching=matching)
    return replace(again, alignment=found.alignment, folded=True)
