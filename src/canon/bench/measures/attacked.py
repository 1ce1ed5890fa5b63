"""What all measurements on attacked models share: the attack, and the certificate of what was recovered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor, nn

from canon import api
from canon.attacks import attack_with
from canon.bench.cases import Attacked
from canon.bench.lab import Owner
from canon.bench.measures.sheet import Sheet, short
from canon.errors import AttackError, VerificationError
from canon.graph import trace
from canon.graph.experts import channel_tensors
from canon.verify import Alignment, Architecture, Certificate, Layout, LayoutKey, align, compare

TOLERANCE = 1e-3
"""Largest residual that Tier 1 allows: the strictest of the paper's."""


def count(model: nn.Module) -> int:
    """Parameters in a model."""
    return sum(parameter.numel() for parameter in model.parameters())


class Refused(Exception):
    """The attack would not be carried out, so there is nothing to measure."""


@contextmanager
def refusals() -> Iterator[None]:
    """What an attack does not allow is no fault of the case: it was refused."""
    try:
        yield
    except AttackError as error:
        raise Refused(error.message) from error


def attacked_model(case: Attacked, owner: Owner, sheet: Sheet) -> nn.Module:
    """Carry the attack out; its time and size go to the sheet."""
    sheet.note(model=owner.trained.figures["model"][:16], parameters_clean=count(owner.model))
    sheet.begin()
    with refusals():
        result = attack_with(owner.model, owner.example, case.attack_options(owner.model, owner.example))
    sheet.lap("attack")
    sheet.note(parameters_attacked=count(result.model))
    return result.model


def widths_differ(model: nn.Module, layout: Layout, example: Tensor) -> str | None:
    """How a model's widths differ from a layout's; None where they do not."""
    tensors = channel_tensors(model)
    found = layout.architecture.differences(Architecture.of(trace(model, example), tensors))
    return f"{len(found)} layers, first {found[0].layer}: {found[0]}" if found else None


@dataclass(frozen=True, eq=False)
class Certified:
    """A recovered model that was held against a reference."""

    alignment: Alignment | None
    """How it was aligned; None where its widths differ."""

    certificate: Certificate
    """Over the layers that count."""

    everywhere: Certificate
    """Over all layers."""


def certified(
    recovered: nn.Module,
    reference: nn.Module,
    layout: Layout | LayoutKey,
    example: Tensor,
    layers: tuple[str, ...],
    sheet: Sheet | None = None,
    *,
    canonical: bool = True,
    alignment: Alignment | None = None,
) -> Certified:
    """Align by way of a layout or layout key, unless that is done already, and compare with the reference.

    Where the reference holds redundancy of its own that recovery removed, canonical forms may be compared, as
    `canon.certify` does. The times of both stages go to the sheet.
    """
    try:
        alignment = alignment or align(recovered, layout, example)
    except VerificationError:  # the widths differ
        found = api.certify(recovered, reference, example, TOLERANCE, layers, canonical=canonical)
        return Certified(None, found, found)
    if sheet is not None:
        sheet.lap("align")
    everywhere = compare(alignment, reference, example, TOLERANCE)
    found = _restricted(everywhere, layers)
    if canonical and not found.passed and alignment.established:
        again = api.certify(recovered, reference, example, TOLERANCE, layers)
        found = again if again.passed else found
    if sheet is not None:
        sheet.lap("certify")
    return Certified(alignment, found, everywhere)


def _restricted(certificate: Certificate, layers: tuple[str, ...]) -> Certificate:
    kept = tuple(layer for layer in certificate.layers if layer.name in layers)
    residuals = {layer.name: certificate.residuals[layer.name] for layer in kept}
    return replace(certificate, layers=kept, residuals=residuals, parameters={}, narrowed=True)


def note_certificate(sheet: Sheet, prefix: str, found: Certified) -> None:
    """Write a certificate's figures down."""
    mine = found.certificate
    sheet.note(
        **{
            f"{prefix}_passed": mine.passed,
            f"{prefix}_layers": len(mine.layers),
            f"{prefix}_layers_passed": sum(layer.passed for layer in mine.layers),
            f"{prefix}_max_rel_err": short(mine.max_rel_err),
            f"{prefix}_match_frac": round(mine.match_frac, 6),
            f"{prefix}_all_max_rel_err": short(found.everywhere.max_rel_err),
            f"{prefix}_canonical": mine.canonical,
        }
    )
