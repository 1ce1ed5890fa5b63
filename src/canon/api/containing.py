"""The owner's network inside the suspect: what was found of it, counted in numbers and layers, and what was not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from canon.api.comparing import Compared, Owner, more_left
from canon.api.recovering import recover
from canon.errors import RecoveryError, VerificationError
from canon.graph import Space, trace
from canon.graph.experts import channel_tensors
from canon.graph.widening import cast
from canon.normal import idle_taps, without_idle_taps
from canon.verify import register
from canon.verify.fixed import fixed_tensors
from canon.verify.forms import conform
from canon.verify.function import Comparison, Inputs, compare_models
from canon.verify.precision import alike, widened
from canon.verify.residuals import fixed_residual
from canon.verify.traced import Traced

if TYPE_CHECKING:
    from canon.containment import Location

NUMBERS: Final = 24
"""Exact numbers per channel that models are compared by where neither has anything beside the other."""

FIXED_ALIKE: Final = 0.7
"""A tensor with fixed coordinates was found if it is no farther from the owner's than this, relative to its size."""


def find(compared: Compared, owner: Owner, ancestors: Sequence[nn.Module]) -> Location:
    """Look for the owner's network in the suspect as it was given."""
    from canon.containment import locate

    return locate(compared.suspect, owner.anchor, cast(owner.example, compared.suspect), ancestors=ancestors)


def find_in_recovered(
    compared: Compared, owner: Owner, ancestors: Sequence[nn.Module], known: Location
) -> Location | None:
    """The owner's network in the suspect as recovery left it, where its key finds more there; None otherwise.

    A key's few numbers may not tell weak channels from what was injected beside them, and recovery takes that away.
    """
    from canon.containment import locate

    if owner.model is not None or compared.result is None or not compared.result.report.changed:
        return None
    recovered = compared.recovered
    found = locate(recovered, owner.anchor, cast(owner.example, recovered), ancestors=ancestors)
    note = "the channels of the suspect are those that recovery has left of it"
    return replace(found, notes=(*found.notes, note)) if found.coverage > known.coverage else None


def find_without_idle_taps(
    compared: Compared, owner: Owner, ancestors: Sequence[nn.Module], known: Location
) -> Location | None:
    """The owner's network in the suspect, but for entries of kernels that only ever meet padding at this input size.

    None where there are none, where they cannot be what keeps the networks apart, or where it is not all there even so.
    """
    from canon.containment import locate
    from canon.containment.answer import CLOSE

    theirs = {} if owner.model is None else idle_taps(owner.model, owner.example)
    others = [layer for layer in known.layers if layer.name not in theirs]
    clean = [layer for layer in others if layer.distinct == layer.channels and layer.worst <= CLOSE]
    if owner.model is None or not theirs or 2 * len(clean) < len(others):
        return None
    example = cast(owner.example, compared.suspect)
    ours = idle_taps(compared.suspect, example)
    found = locate(
        without_idle_taps(compared.suspect, ours),
        without_idle_taps(owner.model, theirs),
        example,
        ancestors=ancestors,
    )
    if found.answer != "contained":
        return None
    count = sum(int(mask.sum()) for mask in theirs.values())
    left_out = f"{count} entries of {len(theirs)} kernels, which only meet padding at this input size, were left out"
    return replace(found, reason=f"{found.reason}; {left_out}", notes=(*found.notes, left_out))


def nothing_added(compared: Compared, owner: Owner, ancestors: Sequence[nn.Module]) -> Location | None:
    """The owner's network in the recovered suspect, if nothing stands beside it there; None otherwise.

    An owner's channels that do nothing cannot be told from each other, and recovery may keep others in their place.
    Then order and scale alone do not make both models one, though neither has anything that the other has not.
    """
    if compared.result is None or compared.formed is None:
        return None
    found = _alone_in(compared.formed, owner, ancestors)
    if found is not None or more_left(compared.result, owner):
        return found
    # Recovery was told the owner's widths, and kept as many channels that do nothing; it may keep others or none.
    example = cast(owner.example, compared.suspect)
    try:
        fewer = recover(compared.suspect, example).model
    except RecoveryError:
        return None
    return _alone_in(conform(widened(fewer), owner.norms, cast(example, widened(fewer)))[0], owner, ancestors)


def _alone_in(model: nn.Module, owner: Owner, ancestors: Sequence[nn.Module]) -> Location | None:
    """The owner's network in a model that is no wider anywhere; None where it is not all there, or not all there is."""
    from canon.containment import locate

    example = cast(owner.example, model)
    ours, theirs = Traced.of(model, example).architecture.shapes, owner.architecture.shapes
    if any(size > most for name in ours for size, most in zip(ours[name], theirs[name], strict=True)):
        return None
    # Rows alone would not show another bias or norm. A key describes a channel by all that it computes.
    try:
        anchor = register(owner.model, owner.example, numbers=NUMBERS) if owner.model is not None else owner.anchor
    except VerificationError:  # a space of which no channel does anything
        return None
    found = locate(model, anchor, example, ancestors=ancestors)
    return found if found.answer == "contained" and not found.refitted else None


def containment_figures(
    location: Location, compared: Compared, owner: Owner, calls: Mapping[str, Sequence[Inputs]]
) -> dict[str, Any]:
    """What was found, as plain data."""
    figures = location.to_dict()
    fixed, sizes = fixed_figures(location, owner)
    layers, numbers = _shares(location, owner)
    near = [name for name, residual in fixed.items() if residual <= FIXED_ALIKE]
    every = [name for name in fixed if _is_table(name, owner)]
    tables = [name for name in every if name not in near]
    owner_function: tuple[Comparison, ...] = ()
    if location.model is not None:
        random = {"random": calls["random"]}
        if owner.model is not None:
            owner_function = compare_models(location.model, owner.model, random)
        else:
            assert owner.key is not None, "one of them is given"
            owner_function = owner.key.compare_function(location.model)
    return {
        **figures,
        "fixed": fixed,
        "replaced": tables,
        "layers_in_all": len(layers) + len(every),
        "layers_found": sum(share >= 0.5 for share in layers.values()) + len(every) - len(tables),
        "numbers": sum(numbers.values()) + sum(sizes.values()),
        "numbers_found": round(sum(numbers[name] * layers[name] for name in layers))
        + sum(sizes[name] for name in near),
        "function": [asdict(item) for item in owner_function],
        "tolerance": compared.tolerance,
    }


def _shares(location: Location, owner: Owner) -> tuple[dict[str, float], dict[str, int]]:
    """By layer of the owner's but for its head: the share of its channels that was found, and its numbers."""
    from canon.containment.answer import OTHERS

    shapes = dict(owner.architecture.shapes)
    if location.model is None:
        return dict.fromkeys(shapes, 0.0), {name: int(torch.Size(shape).numel()) for name, shape in shapes.items()}
    graph = trace(location.model, cast(owner.example, location.model))
    rows = {linear.name: [graph.spaces[segment.space] for segment in linear.rows] for linear in graph.maps}
    # Where the order is given, a channel stands in its place whatever it holds; it was found if it is like the owner's.
    given = {name for name, spaces in rows.items() if any(space.pins for space in spaces)}
    found = {
        layer.name: (layer.distinct if layer.name in given else layer.found) / max(1, layer.channels)
        for layer in location.layers
        if layer.median <= OTHERS  # channels that other layers told, with rows that are nothing like the owner's
    }
    # What attention or a recurrence reads is not read by a layer either; a head's rows are outputs of the model.
    heads = {name for name, spaces in rows.items() if all(_is_output(space) for space in spaces)}
    kept = {name: shape for name, shape in shapes.items() if name not in heads}
    return (
        {name: found.get(name, 0.0) for name in kept},
        {name: int(torch.Size(shape).numel()) for name, shape in kept.items()},
    )


def _is_output(space: Space) -> bool:
    return not space.consumers and any(pin.reason == "model output" for pin in space.pins)


def _is_table(name: str, owner: Owner) -> bool:
    """Whether a fixed tensor has two axes or more that are longer than 1: embeddings, attention, recurrent weights."""
    shape: Sequence[int] = ()
    if owner.model is not None:
        shape = channel_tensors(owner.model)[name].shape
    elif owner.key is not None and owner.key.registered is not None:
        shape, _ = owner.key.registered.fixed.get(name, ((), None))
    return sum(size > 1 for size in shape) > 1


def fixed_figures(location: Location, owner: Owner) -> tuple[dict[str, float], dict[str, int]]:
    """By tensor whose entries have no freedom: its residual in the extracted model, and its numbers."""
    if location.model is None:
        return {}, {}
    if owner.model is None:
        assert owner.key is not None, "one of them is given"
        found, coverage = owner.key.compare_fixed(Traced.of(location.model, cast(owner.example, location.model)))
        missing = {item.what: float("inf") for item in coverage.uncompared}
        sizes = {} if owner.key.registered is None else owner.key.registered.sizes
        return {**found, **missing}, {name: sizes.get(name, 0) for name in (*found, *missing)}
    reference, extracted = alike(owner.model, location.model)
    theirs = fixed_tensors(Traced.of(reference, cast(owner.example, reference)))
    ours = channel_tensors(extracted)
    found = {name: fixed_residual(ours[name], t) if name in ours else float("inf") for name, t in theirs.items()}
    return found, {name: tensor.numel() for name, tensor in theirs.items()}
