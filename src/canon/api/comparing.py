"""The networks of a suspect and its owner, compared: recovered, aligned, certified, and located where that fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, Final, NotRequired, TypedDict, Unpack

import torch
from torch import Tensor, fx, nn

from canon.api.certifying import certify_with
from canon.api.recovering import recover
from canon.containment.ties import untied
from canon.errors import (
    CanonError,
    ExampleError,
    KeyFileError,
    RecoveryError,
    UnsupportedModelError,
    VerificationError,
)
from canon.graph import ChannelGraph
from canon.graph.experts import channel_tensors
from canon.graph.widening import cast
from canon.normal import has_ties
from canon.recovery import RecoveryResult
from canon.verify import Alignment, Architecture, Certificate, LayoutKey, Matching, align
from canon.verify.alignment import align_traced
from canon.verify.coverage import Coverage
from canon.verify.forms import GIVEN, Form, conform
from canon.verify.naming import named_alike
from canon.verify.owner_bases import in_owner_bases
from canon.verify.owner_order import in_owner_order
from canon.verify.precision import Precision, alike, coarsest, widened
from canon.verify.programs import as_given, brought, same_order
from canon.verify.skeleton import skeleton_of
from canon.verify.traced import Traced

if TYPE_CHECKING:
    from canon.containment import Location
    from canon.normal import Housed
    from canon.rewrite import FoldableNorm

Example = Tensor | tuple[Any, ...]

TURNED: Final = (
    "residual streams or attention heads were put into the owner's bases and order; no output changes with that"
)


@dataclass(frozen=True, eq=False)
class Owner:
    """What an owner brings: a model, or the layout key of one."""

    model: nn.Module | None
    """In float32 or float64, to compute with."""

    key: LayoutKey | None
    architecture: Architecture
    norms: tuple[FoldableNorm, ...] | None
    example: Example
    """In the type that the model computes in."""

    traced: Traced | None = None
    """The model with all that is known of it."""

    held: torch.dtype = torch.float32
    """The coarsest float type of the model as it was given."""

    @staticmethod
    def of(reference: nn.Module | None, layout_key: LayoutKey | None, example: Example) -> Owner:
        """Look at what was given.

        Raises:
            VerificationError: Neither or both were given.
        """
        from canon.rewrite import norms_behind_layers

        if reference is not None and layout_key is None:
            model = widened(reference)
            example = cast(example, model)
            traced = Traced.of(model, example)
            norms = norms_behind_layers(model, traced.graph)
            return Owner(model, None, traced.architecture, norms, example, traced, coarsest(reference))
        if isinstance(layout_key, LayoutKey) and reference is None:
            return Owner(None, layout_key, layout_key.layout.architecture, layout_key.norms, example)
        raise VerificationError("give either a reference or a layout key")

    @cached_property
    def skeleton(self) -> str | None:
        """How the network is wired, widths aside; None: an older key does not say."""
        if self.key is not None:
            return self.key.skeleton
        return None if self.traced is None else skeleton_of(self.traced.graph)

    @property
    def ambiguous(self) -> bool:
        """Whether the network has parts that only numbers tell apart."""
        if self.model is not None:
            return has_ties(self.model, self.example)
        program = None if self.key is None else self.key.program
        return program is not None and has_ties(program.model(), self.example)

    @property
    def anchor(self) -> nn.Module | LayoutKey:
        """The model, or the key in its place."""
        found = self.key if self.model is None else self.model
        assert found is not None, "one of them is given"
        return found


@dataclass(frozen=True, eq=False)
class Compared:
    """What came of comparing networks. Whatever does not exist is None."""

    suspect: nn.Module
    """The suspect under the owner's names, as it was given otherwise; or in the owner's program."""

    precision: Precision
    tolerance: float
    """What was asked for, or what the coarser float type allows."""

    structure: str | None = None
    """Why the networks cannot be compared at all."""

    form: Form = GIVEN
    given: nn.Module | None = None
    """The suspect in the owner's form, norms where the owner has them; not recovered."""

    result: RecoveryResult | None = None
    formed: nn.Module | None = None
    """The recovered suspect in the owner's form."""

    certificate: Certificate | None = None
    alignment: Alignment | None = None
    coverage: Coverage = field(default_factory=lambda: Coverage(0))
    fixed: Mapping[str, float] = field(default_factory=dict)
    """By layout key: residuals of tensors whose entries have no freedom."""

    location: Location | None = None
    """Where the owner's network stands in the suspect; None where plain equality holds."""

    alone: Location | None = None
    """Where it stands in the recovered suspect, if there is nothing beside it."""

    notes: tuple[str, ...] = ()
    graph: ChannelGraph | None = None
    """The suspect's channel graph, where it has one that can be compared."""

    housed: Housed | None = None
    """How the suspect was brought into the owner's program, where it was written as another one."""

    running: nn.Module | None = None
    """The suspect as it was given, to compare outputs with, where `suspect` is another program or was turned."""

    @property
    def recovered(self) -> nn.Module:
        """The recovered suspect, or the suspect where it was not recovered."""
        return self.suspect if self.result is None else self.result.model

    @property
    def equal(self) -> bool:
        """Whether every number of the owner's was compared and agrees."""
        if self.alone is not None:
            return self.worst <= self.tolerance and all(residual <= self.tolerance for residual in self.fixed.values())
        if self.certificate is not None:
            return self.certificate.passed
        return (
            self.alignment is not None
            and self.alignment.established_everywhere
            and self.worst <= self.tolerance
            and self.coverage.complete
        )

    @property
    def worst(self) -> float:
        """The worst residual."""
        if self.alone is not None:
            return inf if self.alone.worst is None else self.alone.worst
        if self.certificate is not None:
            return self.certificate.max_rel_err
        if self.alignment is None:
            return inf
        return max(self.alignment.worst, *self.fixed.values(), 0.0)


def compare(suspect: nn.Module, owner: Owner, **options: Unpack[Options]) -> Compared:
    """Recover a suspect and hold it against the owner's network, by all its numbers.

    Where that shows a difference and a model of the owner's is at hand, residual streams and attention heads are put
    into the owner's bases, and it is done once more.
    """
    found = _compare(suspect, owner, **options)
    if found.equal or found.structure is not None or owner.traced is None:
        return found
    turned = in_owner_bases(found.suspect, owner.traced)
    if turned is found.suspect:
        return found
    again = _compare(turned, owner, **options)
    return replace(
        again,
        given=found.given,
        running=found.running or suspect,
        housed=again.housed or found.housed,
        notes=(*again.notes, TURNED),
    )


class Options(TypedDict):
    """How networks are compared."""

    tolerance: float
    layers: tuple[str, ...] | None
    matching: Matching
    recovering: bool
    by_weights: NotRequired[bool]
    """Whether layers are paired as the weights say where structure does not tell them apart, whatever names and order
    say."""


def _compare(
    suspect: nn.Module,
    owner: Owner,
    *,
    tolerance: float,
    layers: tuple[str, ...] | None,
    matching: Matching,
    recovering: bool,
    by_weights: bool = False,
) -> Compared:
    precision = Precision.of(suspect, owner.held)
    allowed = precision.tolerance(tolerance)
    example = cast(owner.example, suspect)
    suspect = in_owner_order(suspect, owner.anchor, example)
    shaped_alike = True
    try:
        try:
            suspect, housed, running, traced, given, form = _formed(suspect, owner, example, by_weights)
        except _OtherWiring:
            # Its widths may be what differs; recovery may still bring it back.
            shaped_alike = False
            suspect, housed, running, traced, given, form = _formed(suspect, owner, example, False, lenient=True)
    except (VerificationError, KeyFileError) as error:
        return Compared(suspect, precision, allowed, structure=str(error))
    result: RecoveryResult | None = None
    notes: tuple[str, ...] = ()
    if recovering:
        try:
            result = recover(suspect, example, widths=_widths(owner.architecture))
        except RecoveryError as error:
            notes = (f"recovery gave up, and the suspect was compared as it is: {error.message}",)
    recovered = widened(suspect if result is None else result.model)
    if owner.model is not None:
        recovered, reference = alike(recovered, owner.model)
        if reference is not owner.model:
            owner = Owner.of(reference, None, cast(example, recovered))
    example = cast(example, recovered)
    formed, _ = conform(recovered, owner.norms, example) if form.changed else (recovered, form)
    try:
        figures = (
            _by_key(formed, owner, example, matching)
            if owner.model is None
            else _by_reference(
                recovered, formed, owner, example, allowed, layers, matching, canonical=not more_left(result, owner)
            )
        )
    except VerificationError as error:
        if shaped_alike:
            raise
        return Compared(suspect, precision, allowed, structure=str(error))
    return Compared(
        suspect,
        precision,
        allowed,
        None,
        form,
        widened(given),
        result,
        formed,
        notes=notes,
        graph=traced.graph,
        housed=housed,
        running=running,
        **figures,
    )


class _OtherWiring(VerificationError):
    """The suspect has the owner's layers, in another order or wired in another way."""


def _formed(
    suspect: nn.Module, owner: Owner, example: Example, by_weights: bool, *, lenient: bool = False
) -> tuple[nn.Module, Housed | None, nn.Module | None, Traced, nn.Module, Form]:
    """The suspect under the owner's names and with norms where the owner has them, or in the owner's program.

    With `lenient`, layers that are wired in different ways pass as long as their widths differ too.

    Raises:
        VerificationError: It is another network, or one whose program cannot be brought into the owner's.
    """

    def formed(model: nn.Module) -> tuple[Traced, nn.Module, Form]:
        traced = Traced.of(model, cast(example, model))
        given, form = conform(model, owner.norms, example, graph=traced.graph)
        shaped = traced if given is model else Traced.of(given, example)
        wider = owner.architecture.differences(shaped.architecture)
        if lenient:
            return traced, given, form
        if wider and owner.skeleton is not None and skeleton_of(shaped.graph) != owner.skeleton:
            raise _OtherWiring("the models have layers of the same names, wired in different ways")
        if not same_order(owner.architecture, shaped.architecture):
            raise _OtherWiring("the models have layers of the same names in another order")
        return traced, given, form

    named = named_alike(suspect, owner.architecture, example, reference=owner.model, norms=owner.norms or ())
    try:
        if by_weights:
            raise VerificationError("names and order do not tell the layers apart")
        return named, None, None, *formed(named)
    except (VerificationError, UnsupportedModelError, ExampleError) as error:
        outline = None if owner.key is None else owner.key.program
        housed, _ = brought(suspect, example, owner.model, outline)
        if housed is None:
            raise
        housed = untied(suspect, owner.anchor, example, housed)
        try:
            return housed.model, housed, as_given(suspect, housed), *formed(housed.model)
        except CanonError:
            raise error from None


def _by_reference(
    recovered: nn.Module,
    formed: nn.Module,
    owner: Owner,
    example: Example,
    tolerance: float,
    layers: tuple[str, ...] | None,
    matching: Matching,
    *,
    canonical: bool,
) -> dict[str, Any]:
    assert owner.model is not None, "callers check it"
    assert owner.traced is not None, "there is a model"
    if isinstance(recovered, fx.GraphModule):
        recovered = named_alike(recovered, owner.architecture, example, reference=owner.model)
    certificate = certify_with(recovered, owner.traced, owner.norms or (), tolerance, layers, matching, canonical)
    alignment = None if certificate.canonical else certificate.alignment
    if alignment is None:
        alignment = _aligned(formed, owner, example, matching)
    return {"certificate": certificate, "alignment": alignment, "coverage": certificate.coverage}


def _by_key(formed: nn.Module, owner: Owner, example: Example, matching: Matching) -> dict[str, Any]:
    assert owner.key is not None, "callers check it"
    traced = Traced.of(named_alike(formed, owner.architecture, example, norms=owner.norms or ()), example)
    if owner.architecture.differences(traced.architecture):
        return {}
    traced.check_finite()
    alignment = align_traced(traced, owner.key.layout, matching=matching, rescale=True)
    fixed, coverage = owner.key.compare_fixed(traced)  # no channel goes along with these: alignment leaves them alone
    return {"alignment": alignment, "fixed": fixed, "coverage": coverage}


def _aligned(formed: nn.Module, owner: Owner, example: Example, matching: Matching) -> Alignment | None:
    """The recovered suspect in the owner's layout; None where its widths are others."""
    if owner.architecture.differences(Traced.of(formed, example).architecture):
        return None
    return align(formed, owner.anchor, example, matching=matching)


def more_left(result: RecoveryResult | None, owner: Owner) -> bool:
    """Whether recovery kept nothing for the owner's sake, and left more channels somewhere than the owner has.

    Then no other recovery of the suspect makes both models equally wide.
    """
    if result is None or any(space.kept_ambiguous for space in result.report.spaces):
        return False
    found, told = channel_tensors(result.model), _widths(owner.architecture)
    return any(
        size > most
        for name in found.keys() & told.keys()
        for size, most in zip(found[name].shape, told[name].shape, strict=False)
    )


def _widths(expected: Architecture) -> dict[str, Tensor]:
    """The owner's widths, in the form that recovery takes: channels that the owner pruned are not for it to remove."""
    return {f"{name}.weight": torch.empty(shape, device="meta") for name, shape in expected.shapes.items()}
