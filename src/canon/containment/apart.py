"""Could a copy be a network that learned apart from the same first weights? Asked of what would be *derived*."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.containment.agreement import correlation, outputs_on_probes
from canon.containment.answer import Findings, decide
from canon.containment.found import Found
from canon.containment.location import Location, Start
from canon.containment.owner import Owner
from canon.containment.start import start_by_portrait, start_by_weights
from canon.errors import VerificationError
from canon.graph.widening import is_large
from canon.verify.precision import ROUNDINGS, coarsest
from canon.verify.traced import Traced

SAME_OUTPUTS: Final = 0.999
"""Correlation of outputs on random inputs from which on a common start is no explanation: networks that were trained
apart from one were seen at up to 0.997."""


@dataclass(frozen=True, eq=False)
class Extracted:
    """What was extracted from a suspect before columns were refitted, and what it rests on."""

    model: Traced
    suspect: Traced
    found: Mapping[int, Found]
    fitted: frozenset[int]
    """Maps whose numbers were fitted."""

    example: Tensor | tuple[Any, ...]
    """What probes are drawn from."""


def unless_apart(
    result: Location, findings: Findings, extracted: Extracted, owner: Owner, suspect: nn.Module, outputs: Tensor
) -> Location:
    """A result that stands, or *not decided* where a common start explains it as well.

    Args:
        result: What would be *derived*.
        findings: What it rests on.
        extracted: The owner's network as it stands in the suspect.
        owner: The owner's.
        suspect: The suspect as it was given.
        outputs: What it computes on probes.
    """
    same = _outputs_alike(suspect, owner, outputs, extracted.example) >= SAME_OUTPUTS
    if same or _only_rounded(suspect, result):
        return result  # two that learned apart do not compute the same
    start = _start(extracted, owner)
    if start is not None and start.explains:
        result = decide(_explained(findings, start))
    return replace(result, start=start)


def _outputs_alike(suspect: nn.Module, owner: Owner, outputs: Tensor, example: Tensor | tuple[Any, ...]) -> float:
    """How alike the outputs of suspect and owner move with the input."""
    if owner.traced is not None:
        return correlation(outputs_on_probes(owner.traced.model, example), outputs)
    if owner.registered is None or owner.registered.outputs is None:
        return 0.0
    try:
        return correlation(owner.registered.outputs, owner.registered.outputs_like(suspect))
    except VerificationError:
        return 0.0


def _only_rounded(model: nn.Module, result: Location) -> bool:
    """Whether a large model differs by no more than the rounding of its type, which no training explains."""
    if not is_large(model):
        return False
    allowed = ROUNDINGS * torch.finfo(coarsest(model)).eps
    return all(layer.worst <= allowed for layer in result.layers if layer.found)


def _start(extracted: Extracted, owner: Owner) -> Start | None:
    """How far training apart from the same first weights would explain what was found; None: it cannot be seen."""
    found, fitted = extracted.found, extracted.fitted
    if owner.traced is not None:
        return start_by_weights(extracted.model, owner.traced, found, fitted, owner.portrait.seed)
    if any(item.mirrored for item in found.values()):
        return None  # the owner's columns that are not there cannot be taken out of a key
    return start_by_portrait(owner.portrait, found, extracted.suspect, fitted)


def _explained(findings: Findings, start: Start) -> Findings:
    """The same where a common start explains what agrees: beyond the first layers, nothing was found distinctly."""
    spaces = tuple(
        s if s.name in findings.first else replace(s, distinct=torch.zeros_like(s.distinct)) for s in findings.spaces
    )
    layers = tuple(layer if layer.first else replace(layer, distinct=0) for layer in findings.layers)
    return replace(findings, spaces=spaces, layers=layers, start=start)
