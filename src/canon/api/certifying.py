"""`certify`: Tier 1 on the models as given, on folded forms where norms were folded away, or on canonical forms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torch import fx, nn

from canon.api.recovering import recover
from canon.containment import locate
from canon.errors import RecoveryError, VerificationError
from canon.graph import Example, arguments, plain
from canon.graph.tracer import check_module
from canon.recovery import RecoveryResult
from canon.rewrite import FoldableNorm, norms_behind_layers
from canon.verify import Certificate, Matching
from canon.verify.certificate import certify_traced
from canon.verify.folded import certify_folded
from canon.verify.forms import conform
from canon.verify.naming import named_alike
from canon.verify.owner_bases import in_owner_bases
from canon.verify.owner_order import in_owner_order
from canon.verify.programs import brought
from canon.verify.traced import Traced


def certify(
    recovered: nn.Module,
    reference: nn.Module,
    example: Example,
    tolerance: float = 1e-3,
    layers: Iterable[str] | None = None,
    *,
    matching: Matching = "nearest",
    canonical: bool = True,
    norms: tuple[FoldableNorm, ...] | None = None,
) -> Certificate:
    """Tier 1: compare a recovered model with a reference, up to the order and scale of channels.

    Where norms were folded into the layers of the recovered model, those of the reference are folded as well. A
    reference may hold channels that do nothing or stand twice; recovery rightly removes them. Where that keeps the
    models from being compared, both are recovered and their canonical forms compared instead. Where the certificate
    does not pass at all, the reference's network is looked for inside the model (`Certificate.location`).

    Args:
        recovered: The recovered model, in evaluation mode. It is not changed.
        reference: The owner's model.
        example: An input tensor, or a tuple or dict of inputs.
        tolerance: Largest relative residual that passes.
        layers: The layers that count; None: all.
        matching: `nearest`, `greedy` or `optimal`.
        canonical: Whether canonical forms may be compared, and the reference's network looked for.
        norms: The reference's norms, where they are known already.
    """
    recovered, reference = plain(recovered), plain(reference)
    check_module(recovered)
    check_module(reference)
    example = arguments(reference, example)
    owner = Traced.of(reference, example)
    recovered = in_owner_order(recovered, reference, example)
    known = norms_behind_layers(reference, owner.graph) if norms is None else norms
    if isinstance(recovered, fx.GraphModule):
        recovered = named_alike(recovered, owner.architecture, example, reference=reference)
    names = None if layers is None else tuple(layers)
    try:
        found = certify_with(recovered, owner, known, tolerance, names, matching, canonical)
    except VerificationError:
        housed, _ = brought(recovered, example, reference, None)
        if housed is None or not housed.exact or housed.surplus:
            raise
        recovered = housed.model
        found = certify_with(recovered, owner, known, tolerance, names, matching, canonical)
    if not found.passed and canonical:
        turned = in_owner_bases(recovered, owner)
        if turned is not recovered:
            turned = in_owner_order(turned, reference, example)
            recovered, found = turned, certify_with(turned, owner, known, tolerance, names, matching, canonical)
    return found if found.passed or not canonical else replace(found, location=locate(recovered, reference, example))


def certify_with(
    recovered: nn.Module,
    owner: Traced,
    norms: tuple[FoldableNorm, ...],
    tolerance: float,
    names: tuple[str, ...] | None,
    matching: Matching,
    canonical: bool = True,
) -> Certificate:
    """As `certify`, for a reference that is traced already and a model that has its names."""
    example = owner.example

    def once(ours: nn.Module, theirs: Traced) -> Certificate:
        traced = Traced.like(ours, example, theirs)
        formed, form = conform(ours, norms, example, graph=traced.graph)
        if form.changed:
            return certify_folded(formed, theirs.model, example, tolerance, names, matching=matching)
        return certify_traced(traced, theirs, tolerance, names, matching=matching)

    found = once(recovered, owner)
    related = found.alignment is None or found.alignment.established
    if found.passed or not related or not canonical:
        return found
    try:
        theirs = recover(owner.model, example)
        if not _changed(theirs) and found.alignment is not None:
            return found  # the reference is as narrow as it gets, and the model is no wider
        ours = recover(recovered, example)
    except RecoveryError:
        return found
    if not _changed(theirs) and not _changed(ours):
        return found
    again = once(ours.model, Traced.of(theirs.model, example))
    # A failure is told about the models that were given.
    return replace(again, canonical=True) if again.passed else found


def _changed(result: RecoveryResult) -> bool:
    """Whether recovery found anything to do."""
    return bool(result.report.removed or result.report.merged or result.report.cropped)
