"""`locate`: the owner's network inside whatever was built around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.containment.agreement import Agreement, agreement, outputs_on_probes
from canon.containment.ancestry import updates
from canon.containment.answer import CLOSE, DERIVED, Findings, decide
from canon.containment.apart import Extracted, unless_apart
from canon.containment.exact import compare_exactly, confirm, count_together
from canon.containment.extract import blank, extract
from canon.containment.foreign import foreign_spaces
from canon.containment.found import Found
from canon.containment.inputs import in_owner_convention, usual_conventions
from canon.containment.location import Answer, Location, Span
from canon.containment.owner import NUMBERS, Owner
from canon.containment.places import walk_through
from canon.containment.refit import refit
from canon.containment.residuals import by_space, layer_residuals
from canon.containment.span import spans
from canon.containment.summary import first_spaces, layers_of, notes_on, other_heads, spaces_of
from canon.containment.suspect import OtherNetwork, Suspect, prepare
from canon.containment.ties import untied
from canon.containment.walk import Walk
from canon.errors import VerificationError
from canon.graph import Example, arguments, plain
from canon.graph.experts import channel_tensors
from canon.graph.inputs import fitting
from canon.graph.orders import write_back
from canon.graph.tracer import check_model
from canon.graph.widening import is_large
from canon.normal import Housed
from canon.rewrite.resize import resize
from canon.verify.architecture import Architecture
from canon.verify.key import LayoutKey
from canon.verify.layout import Layout
from canon.verify.owner_bases import in_owner_bases
from canon.verify.owner_order import in_owner_order
from canon.verify.precision import Precision, coarsest
from canon.verify.programs import as_given
from canon.verify.side import movable
from canon.verify.traced import Traced

HALVES: Final = (torch.float16, torch.bfloat16)

BETTER: Final = 0.5
"""A refitted model counts if it differs from the suspect by this part of what it did."""


def locate(
    suspect: nn.Module,
    reference: nn.Module | LayoutKey,
    example: Example,
    *,
    ancestors: Sequence[nn.Module] = (),
) -> Location:
    """Find the owner's network in a suspect, whatever was built around it.

    Nothing has to be redundant, and nothing is recovered first: every channel of the suspect is compared with the
    owner's in the owner's own coordinates, and what is nobody's is left out.

    Args:
        suspect: The model under suspicion, in evaluation mode. It is not changed.
        reference: The owner's model, or its layout key from `register`.
        example: An input tensor, or a tuple or dict of inputs.
        ancestors: Public models that the owner's was made from. What they explain is then not counted.

    Raises:
        CanonError: A model cannot be traced or holds numbers that are not finite, or the key is damaged.
    """
    suspect = plain(suspect)
    reference = plain(reference) if isinstance(reference, nn.Module) else reference
    check_model(suspect)
    example = arguments(suspect, example)
    suspect = in_owner_order(suspect, reference, example)
    owner = Owner.of(reference, fitting(example, reference) if isinstance(reference, nn.Module) else example)
    whole = reference if isinstance(reference, nn.Module) else None
    try:
        given = prepare(suspect, owner.architecture, owner.skeleton, owner.norms, example, whole, owner.program)
    except OtherNetwork as error:
        return Location("not decided", f"nothing could be compared: {error}", 0.0, 0.0, None, None, None)
    if given.housed is not None and given.housed.tied:
        better = untied(suspect, reference, example, given.housed, owner)
        if better is not given.housed:
            given = prepare(better.model, owner.architecture, owner.skeleton, owner.norms, example, whole)
            given = replace(given, housed=better)
    with torch.no_grad():
        known = [_ancestor(model, owner, example, whole) for model in ancestors]
        running = suspect if given.housed is None else as_given(suspect, given.housed)
        found = _located(running, given, owner, example, known)
        unsure = found.answer != "contained" and any(layer.distinct < layer.channels for layer in found.layers)
        if unsure and owner.traced is not None and (given.housed is None or given.housed.exact):
            turned = in_owner_bases(given.traced.model, owner.traced)
            if turned is not given.traced.model:
                return locate(turned, reference, example, ancestors=ancestors)
        if not any(layer.first and 2 * layer.distinct >= layer.channels for layer in found.layers):
            other = _with_other_inputs(given, owner, example, known)
            found = other if other is not None and other.coverage > found.coverage else found
        return _as_far_as(found, given.housed)


def _with_other_inputs(
    given: Suspect, owner: Owner, example: Tensor | tuple[Any, ...], ancestors: Sequence[Mapping[int, Found]]
) -> Location | None:
    """What is found where the suspect takes its inputs in another convention; None: it does not, or nothing is."""
    if is_large(given.traced.model):
        return None
    # A key does not hold what would tell any matrix.
    other = None if owner.traced is None else in_owner_convention(given.traced, owner.traced)
    if other is None:
        others = usual_conventions(given.traced)
        other = next((x for x in others if Walk(x.graph, x.tensors, owner.portrait).begins()), None)
    if other is None:
        return None
    found = _located(other.model, replace(given, traced=other), owner, example, ancestors)
    if found.answer not in ("contained", "derived"):
        return None
    note = "the suspect takes its inputs in another convention (channels in another order, negated or mixed, or images "
    note += "turned), and was read as if it took the owner's"
    return replace(found, answer="derived", reason=f"{found.reason}; {note}", notes=(*found.notes, note))


def _as_far_as(found: Location, housed: Housed | None) -> Location:
    """What may be said of a suspect that was brought into the owner's program: no more than what was brought over."""
    if housed is None or housed.exact:
        return found
    weaker: dict[Answer, Answer] = {"contained": "derived", "unrelated": "not decided"}
    parts = [*housed.missing, *housed.surplus]
    said = f"the suspect's layers are wired in another way, and {len(parts)} parts have no counterpart"
    first = f", first {parts[0]}" if parts else ""
    return replace(found, answer=weaker.get(found.answer, found.answer), reason=f"{found.reason}; but {said}{first}")


def _ancestor(
    model: nn.Module, owner: Owner, example: Tensor | tuple[Any, ...], whole: nn.Module | None
) -> dict[int, Found]:
    """What the ancestor has of the owner's network."""
    traced = prepare(model, owner.architecture, owner.skeleton, owner.norms, example, whole, owner.program).traced
    return Walk(traced.graph, traced.tensors, owner.portrait).run()


def _located(
    suspect: nn.Module,
    given: Suspect,
    owner: Owner,
    example: Tensor | tuple[Any, ...],
    ancestors: Sequence[Mapping[int, Found]],
) -> Location:
    held = torch.float32 if owner.traced is None else coarsest(owner.traced.model)
    precision = Precision.of(suspect, held)
    theirs = outputs_on_probes(suspect, example)  # before anything else takes memory
    walk = walk_through(given.traced, owner.portrait, owner.traced)
    found = walk.found
    count_together(found)
    given = replace(given, traced=replace(given.traced, tensors=walk.tensors))
    extracted = _extracted(given, owner, example, found)
    ours = outputs_on_probes(extracted.model, example)
    agreed = agreement(theirs, ours, precision)
    refitted: tuple[str, ...] = ()
    before = Extracted(extracted, given.traced, found, walk.linear.fitted, example)
    carried = agreed.difference <= CLOSE or any(item.mirrored for item in found.values())
    # Refitting takes activations of all layers at once.
    if not carried and _share(found) >= DERIVED and not is_large(given.traced.model) and _runs(given, example):
        again = _extracted(given, owner, example, found)
        names = refit(given.traced, again, found, example)
        better = agreement(theirs, outputs_on_probes(again.model, example), precision)
        if names and better.typical <= BETTER * agreed.typical:
            extracted, agreed, refitted = again, better, names
            if owner.traced is not None:
                # Where columns were missing, rows were measured without them, and their scales by that much off.
                whole = Layout(owner.architecture, owner.portrait.steps, seed=owner.portrait.seed, settled=None)
                extracted, _ = compare_exactly(extracted, whole, found, numbers=NUMBERS)
    heads = other_heads(owner.architecture, extracted)
    if owner.traced is not None:
        silent = {space: item.silent for space, item in found.items()}
        residuals = layer_residuals(extracted, owner.traced, silent)
        confirm(found, by_space(owner.traced.graph, owner.traced.tensors, residuals))
    else:
        assert owner.layout is not None, "an owner is a model or a key"
        extracted, residuals = compare_exactly(extracted, owner.layout, found)
    graph = extracted.graph
    findings = Findings(
        model=extracted.model,
        layers=layers_of(graph, owner.architecture, found, residuals, by_key=owner.traced is None, placed=walk.placed),
        spaces=spaces_of(graph, found),
        silent={graph.spaces[space].name: item.silent for space, item in found.items()},
        first=first_spaces(graph),
        agreement=agreed,
        refitted=refitted,
        owner=None,
        notes=notes_on(given, heads, len(walk.mixed)),
        foreign=foreign_spaces(walk, owner.traced),
        updates=tuple(updates(owner.portrait, found, known) for known in ancestors),
        seed=owner.portrait.seed,
        close=precision.tolerance(CLOSE),
    )
    result = decide(findings)
    if result.answer not in ("contained", "derived") or result.deep < DERIVED:
        # Activations can only support what rows do not show.
        findings = replace(findings, spans=_spans(given, owner, found, example))
        result = decide(findings)
    if result.answer == "contained":
        # Rows agree; whether all else does is seen in the outputs.
        return decide(replace(findings, owner=_with_owner(owner, extracted.model, ours, example, precision)))
    if result.answer == "derived" and not ancestors and result.deep >= DERIVED:
        return unless_apart(result, findings, before, owner, suspect, theirs)
    return result


def _with_owner(
    owner: Owner, extracted: nn.Module, ours: Tensor, example: Tensor | tuple[Any, ...], precision: Precision
) -> Agreement | None:
    """Whether the extracted model computes what the owner's does; None: a key does not tell."""
    if owner.traced is not None:
        return agreement(outputs_on_probes(owner.traced.model, example), ours, precision)
    if owner.registered is None or owner.registered.outputs is None:
        return None
    try:
        return agreement(owner.registered.outputs, owner.registered.outputs_like(extracted), precision)
    except VerificationError:
        return None


def _extracted(given: Suspect, owner: Owner, example: Tensor | tuple[Any, ...], found: Mapping[int, Found]) -> Traced:
    """The owner's network as it stands in the suspect, with zeros for what was not found."""
    model = extract(given.traced.model, given.traced.graph, given.traced.tensors, found)
    inputs = fitting(example, model)
    extracted = _traced(model, inputs, given.traced, owner, found)
    missing = {}
    for space, item in found.items():
        if movable(extracted.graph.spaces[space]):
            missing[space] = ~item.accepted.found
    blank(extracted.graph, extracted.tensors, missing)
    write_back(model, extracted.tensors, extracted.graph.orders)
    return extracted


def _traced(model: nn.Module, inputs: Any, suspect: Traced, owner: Owner, found: Mapping[int, Found]) -> Traced:
    """The extracted model with its graph; that of a large one is the suspect's with the owner's widths."""
    if owner.traced is not None and owner.traced.graph.method == "fx":
        return Traced.like(model, inputs, owner.traced)
    if not is_large(model):
        return Traced.of(model, inputs)
    spaces = suspect.graph.spaces
    widths = {space: item.accepted.best.numel() for space, item in found.items() if movable(spaces[space])}
    graph = resize(suspect.graph, widths)
    tensors = channel_tensors(model, graph.orders)
    return Traced(model, inputs, graph, tensors, Architecture.of(graph, tensors))


def _spans(
    given: Suspect, owner: Owner, found: Mapping[int, Found], example: Tensor | tuple[Any, ...]
) -> tuple[Span, ...]:
    """The span test, for spaces in which the owner's channels have no counterpart."""
    several = isinstance(example, tuple) and sum(isinstance(x, Tensor) for x in example) > 1
    if owner.traced is None or several or any(p.dtype in HALVES for p in given.traced.model.parameters()):
        return ()
    spaces = given.traced.graph.spaces
    missing = [
        index
        for index, item in found.items()
        if movable(spaces[index]) and bool((~item.accepted.found & ~item.silent).any())
    ]
    return spans(given.traced, owner.traced, missing, example) if missing else ()


def _runs(given: Suspect, example: Tensor | tuple[Any, ...]) -> bool:
    """Whether the suspect can be run in the owner's form: with other widths, the owner's program may not fit it."""
    if given.housed is None:
        return True
    try:
        outputs_on_probes(given.traced.model, example)
    except VerificationError:
        return False
    return True


def _share(found: Mapping[int, Found]) -> float:
    """Share of the owner's channels that were found at all."""
    total = sum(int((~item.silent).sum()) for item in found.values())
    return sum(int((item.accepted.found & ~item.silent).sum()) for item in found.values()) / max(1, total)
