"""`locate`: the owner's network inside whatever was built around it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.containment.agreement import agreement, outputs_on_probes
from canon.containment.ancestry import updates
from canon.containment.answer import CLOSE, DERIVED, OTHERS, Findings, decide
from canon.containment.exact import compare_exactly, confirm
from canon.containment.extract import blank, extract
from canon.containment.location import Answer, LocatedLayer, LocatedSpace, Location, Span, Start
from canon.containment.mirrors import mirror_images, with_images
from canon.containment.places import walk_through
from canon.containment.refit import refit
from canon.containment.residuals import by_space, channels_of, layer_residuals
from canon.containment.span import spans
from canon.containment.start import start_by_portrait, start_by_weights
from canon.containment.suspect import OtherNetwork, Suspect, prepare
from canon.containment.ties import untied
from canon.containment.walk import Found, Walk
from canon.errors import KeyFileError
from canon.graph import ChannelGraph, Example, arguments
from canon.graph.inputs import fitting
from canon.graph.tracer import check_model
from canon.graph.widening import is_large
from canon.normal import Housed, Outline
from canon.rewrite import FoldableNorm, norms_behind_layers
from canon.verify.architecture import Architecture
from canon.verify.key import LayoutKey
from canon.verify.layout import Layout, survey
from canon.verify.portrait import Portrait, with_luck
from canon.verify.precision import ROUNDINGS, Precision, coarsest
from canon.verify.programs import as_given
from canon.verify.side import movable
from canon.verify.skeleton import skeleton_of
from canon.verify.traced import Traced

HALVES: Final = (torch.float16, torch.bfloat16)

NUMBERS: Final = 64
"""Numbers per row where the owner's model is at hand: under 20% noise, 2,048 rows are still told apart."""


BETTER: Final = 0.5
"""A refitted model counts if it differs from the suspect by this part of what it did."""

SAMPLE: Final = 256
"""Numbers of each tensor that the seed is made from, and some more."""


@dataclass(frozen=True, eq=False)
class Owner:
    """What is known of the owner's network: all of it, or what a layout key keeps."""

    architecture: Architecture
    portrait: Portrait
    norms: tuple[FoldableNorm, ...] | None
    skeleton: str | None
    traced: Traced | None = None
    """The owner's model, where it is at hand."""

    layout: Layout | None = None
    """Exact figures of a key."""

    program: Outline | None = None
    """A key's program."""

    @staticmethod
    def of(reference: nn.Module | LayoutKey, example: Tensor | tuple[Any, ...]) -> Owner:
        """From a model or a layout key."""
        if isinstance(reference, LayoutKey):
            portrait, layout = reference.portrait, reference.layout
            if portrait is None:
                raise KeyFileError(
                    "the key was made before keys could locate a network", hint="Make it again with `canon register`"
                )
            return Owner(
                layout.architecture,
                portrait,
                reference.norms,
                reference.skeleton,
                layout=layout,
                program=reference.program,
            )
        traced = Traced.of(reference, example)
        traced.check_finite()
        seed = _seed(traced.tensors)
        layout = survey(traced, numbers=NUMBERS, seed=seed)
        norms = norms_behind_layers(reference, traced.graph)
        portrait = Portrait(with_luck(layout.steps, traced), NUMBERS, seed)
        return Owner(layout.architecture, portrait, norms, skeleton_of(traced.graph), traced)


def _seed(tensors: Mapping[str, Tensor]) -> int:
    """Rows are projected with a seed that the owner's model gives, so that evidence can be made again.

    Whoever has the model could make rows that agree in the projection alone; residuals compare rows in full.
    """
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.numel():
            flat = tensor.detach().flatten()
            some = flat[:: max(1, flat.numel() // SAMPLE)].double().cpu().contiguous()
            digest.update(name.encode())
            digest.update(some.numpy().tobytes())
    return int.from_bytes(digest.digest()[:8], "big") >> 2


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
    check_model(suspect)
    example = arguments(suspect, example)
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
        return _as_far_as(_located(running, given, owner, example, known), given.housed)


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
    walk, found = walk_through(given.traced, owner.portrait)
    extracted = _extracted(given, owner, example, found)
    ours = outputs_on_probes(extracted.model, example)
    agreed = agreement(theirs, ours, precision)
    refitted: tuple[str, ...] = ()
    given_found = extracted, found
    # Refitting takes activations of all layers at once.
    if not agreed.difference <= CLOSE and _share(found) >= DERIVED and not is_large(given.traced.model):
        other = mirror_images(walk)
        given_found = extracted, other
        again = _extracted(given, owner, example, other)
        names = refit(given.traced, again, other, example)
        better = agreement(theirs, outputs_on_probes(again.model, example), precision)
        if names and better.typical <= BETTER * agreed.typical:
            extracted, agreed, refitted, found = again, better, names, with_images(other)
            if owner.traced is not None:
                # Where columns were missing, rows were measured without them, and their scales by that much off.
                whole = Layout(owner.architecture, owner.portrait.steps, seed=owner.portrait.seed)
                extracted, _ = compare_exactly(extracted, whole, found, numbers=NUMBERS)
    heads = _heads(owner.architecture, extracted)
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
        layers=_layers(graph, owner.architecture, found, residuals, by_key=owner.traced is None),
        spaces=_spaces(graph, found),
        silent={graph.spaces[space].name: item.silent for space, item in found.items()},
        first=_first(graph),
        agreement=agreed,
        refitted=refitted,
        owner=None,
        notes=_notes(given, heads),
        updates=tuple(updates(owner.portrait, found, known) for known in ancestors),
        seed=owner.portrait.seed,
        close=precision.tolerance(CLOSE),
    )
    result = decide(findings)
    if result.answer not in ("contained", "derived") or result.deep < DERIVED:
        # Activations can only support what rows do not show.
        findings = replace(findings, spans=_spans(given, owner, found, example))
        result = decide(findings)
    if result.answer == "contained" and owner.traced is not None:
        # Rows agree; whether all else does is seen in the outputs.
        return decide(
            replace(findings, owner=agreement(outputs_on_probes(owner.traced.model, example), ours, precision))
        )
    if result.answer == "derived" and not ancestors and result.deep >= DERIVED and not _only_rounded(given, result):
        start = _start(*given_found, owner)
        if start is not None and start.explains:
            result = decide(_explained(findings, start))
        result = replace(result, start=start)
    return result


def _only_rounded(given: Suspect, result: Location) -> bool:
    """Whether a large model differs by no more than the rounding of its type, which no training explains."""
    model = given.traced.model
    if not is_large(model):
        return False
    allowed = ROUNDINGS * torch.finfo(coarsest(model)).eps
    return all(layer.worst <= allowed for layer in result.layers if layer.found)


def _start(extracted: Traced, found: Mapping[int, Found], owner: Owner) -> Start | None:
    """How far training apart from the same first weights would explain what was found; None: it cannot be seen."""
    if owner.traced is not None:
        return start_by_weights(extracted, owner.traced, found)
    if any(item.mirrored for item in found.values()):
        return None  # the owner's columns that are not there cannot be taken out of a key
    return start_by_portrait(owner.portrait, found, extracted.graph)


def _explained(findings: Findings, start: Start) -> Findings:
    """The same where a common start explains what agrees: beyond the first layers, nothing was found distinctly."""
    spaces = tuple(
        s if s.name in findings.first else replace(s, distinct=torch.zeros_like(s.distinct)) for s in findings.spaces
    )
    layers = tuple(layer if layer.first else replace(layer, distinct=0) for layer in findings.layers)
    return replace(findings, spaces=spaces, layers=layers, start=start)


def _extracted(given: Suspect, owner: Owner, example: Tensor | tuple[Any, ...], found: Mapping[int, Found]) -> Traced:
    """The owner's network as it stands in the suspect, with zeros for what was not found."""
    model = extract(given.traced.model, given.traced.graph, given.traced.tensors, found)
    inputs = fitting(example, model)
    extracted = Traced.of(model, inputs) if owner.traced is None else Traced.like(model, inputs, owner.traced)
    missing = {}
    for space, item in found.items():
        if movable(extracted.graph.spaces[space]):
            missing[space] = ~item.accepted.found & (item.mirror < 0 if item.mirrored else True)
    blank(extracted.graph, extracted.tensors, missing)
    return extracted


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


def _share(found: Mapping[int, Found]) -> float:
    """Share of the owner's channels that were found at all."""
    here = torch.cat([item.accepted.found[~item.silent] for item in found.values()])
    return float(here.double().mean()) if here.numel() else 0.0


def _heads(expected: Architecture, extracted: Traced) -> tuple[str, ...]:
    """Layers whose outputs are not as many as the owner's: the suspect was made for another task."""
    graph = extracted.graph
    made = {graph.maps[p.map].name for space in graph.spaces if not movable(space) for p in space.producers}
    other = tuple(difference.layer for difference in expected.differences(extracted.architecture))
    if set(other) - made:
        raise KeyFileError("the key's steps do not make the layers that it names", where=other[0])
    return other


def _first(graph: ChannelGraph) -> frozenset[str]:
    """Spaces that are made from the model's input alone."""
    makers = {space.name: [graph.maps[p.map].columns for p in space.producers] for space in graph.spaces}
    return frozenset(name for name, columns in makers.items() if columns and all(c is None for c in columns))


def _layers(
    graph: ChannelGraph,
    architecture: Architecture,
    found: Mapping[int, Found],
    residuals: Mapping[str, Tensor],
    *,
    by_key: bool,
) -> tuple[LocatedLayer, ...]:
    first, rows, layers = _first(graph), channels_of(graph), []
    for name in architecture.shapes:
        items = [(found[space], repeat) for space, repeat in rows[name] if space in found]
        if not items:
            continue
        here = torch.cat([item.accepted.found.repeat_interleave(repeat) for item, repeat in items])
        heard = torch.cat([(~item.silent).repeat_interleave(repeat) for item, repeat in items])
        far = residuals[name][here & heard]
        known = torch.cat([item.accepted.distinct.repeat_interleave(repeat) for item, repeat in items])
        # A space may have been found by other layers that make it. A key tells channels apart, not their layers.
        near = torch.ones_like(here) if by_key else residuals[name] <= OTHERS
        layers.append(
            LocatedLayer(
                name=name,
                channels=here.numel(),
                found=int((here & near).sum()),
                distinct=int((known & near).sum()),
                median=float(far.median()) if far.numel() else 0.0,
                worst=float(far.max()) if far.numel() else 0.0,
                chance=max(item.bar for item, _ in items),
                first=all(graph.spaces[space].name in first for space, _ in rows[name]),
            )
        )
    return tuple(layers)


def _spaces(graph: ChannelGraph, found: Mapping[int, Found]) -> tuple[LocatedSpace, ...]:
    return tuple(
        LocatedSpace(
            name=graph.spaces[space].name,
            owner=item.accepted.found.numel(),
            match=item.accepted.match,
            found=item.accepted.found,
            distinct=item.accepted.distinct,
            chance=item.bar,
            pinned=bool(graph.spaces[space].pins),
        )
        for space, item in sorted(found.items())
    )


def _notes(given: Suspect, heads: Sequence[str]) -> tuple[str, ...]:
    notes = [f"the layer '{name}' has another number of outputs, and stays the suspect's" for name in heads]
    if given.housed is not None:
        notes.append(f"the suspect is another program; brought into the owner's in {len(given.housed.steps)} steps")
        for what, names in (
            ("owner's without a counterpart", given.housed.missing),
            ("left out", given.housed.surplus),
        ):
            notes += [f"{what}: {', '.join(names[:8])}{' …' if len(names) > 8 else ''}"] if names else []
    if given.form.restored:
        notes.append(f"{len(given.form.restored)} norms that the suspect's layers had taken up were put back")
    if given.form.folded:
        notes.append(f"{len(given.form.folded)} norms that the owner's network does not have were folded")
    if given.cropped:
        notes.append(f"{len(given.cropped)} kernels had grown, and were cropped")
    return tuple(notes)
