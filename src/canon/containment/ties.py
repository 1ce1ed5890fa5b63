"""Operands that structure does not tell apart, told apart by the weights: what was taken for the other is not found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from canon.containment.residuals import channels_of
from canon.containment.suspect import OtherNetwork, prepare
from canon.containment.walk import Walk
from canon.graph.inputs import fitting
from canon.normal import Housed
from canon.verify.key import LayoutKey
from canon.verify.programs import brought

if TYPE_CHECKING:
    from canon.containment.owner import Owner

TRIES: Final = 3
"""Other pairings that are tried."""

FEW: Final = 0.5
"""Layers of which less was found were probably paired with others."""


def untied(
    suspect: nn.Module,
    reference: nn.Module | LayoutKey,
    example: Tensor | tuple[Any, ...],
    housed: Housed,
    owner: Owner | None = None,
) -> Housed:
    """A suspect in the owner's program, with operands paired as the weights say; as it is where nothing is tied.

    Args:
        suspect: The suspect as it was given.
        reference: The owner's model or layout key.
        example: An input tensor or tuple of inputs.
        housed: The suspect in the owner's program.
        owner: What is known of the owner's network, where it is at hand.
    """
    if not housed.tied or not housed.whole:
        return housed
    from canon.containment.owner import Owner

    model = reference if isinstance(reference, nn.Module) else None
    known = owner or Owner.of(reference, example if model is None else fitting(example, model))
    best = _shares(housed, known, example, model)
    for _ in range(TRIES):
        doubtful = {k for k, names in enumerate(housed.tied) if names and min(best.get(n, 1.0) for n in names) < FEW}
        if not doubtful:
            break
        other, _why = brought(suspect, fitting(example, suspect), model, known.program, housed.turned ^ doubtful)
        shares = {} if other is None else _shares(other, known, example, model)
        if other is None or sum(shares.values()) <= sum(best.values()):
            break
        housed, best = other, shares
    return housed


def _shares(
    housed: Housed, owner: Owner, example: Tensor | tuple[Any, ...], reference: nn.Module | None
) -> dict[str, float]:
    """By layer: the share of the owner's channels that was found; nothing where the networks cannot be compared."""
    try:
        given = prepare(housed.model, owner.architecture, owner.skeleton, owner.norms, example, reference)
    except OtherNetwork:
        return {}
    with torch.no_grad():
        found = Walk(given.traced.graph, given.traced.tensors, owner.portrait).run()
    shares: dict[str, float] = {}
    for name, spaces in channels_of(given.traced.graph).items():
        here = [found[space].accepted.distinct.double().mean() for space, _ in spaces if space in found]
        if here:
            shares[name] = float(torch.stack(here).mean())
    return shares
