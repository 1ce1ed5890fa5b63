"""What was found, told layer by layer and space by space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import torch
from torch import Tensor

from canon.containment.found import Found
from canon.containment.location import LocatedLayer, LocatedSpace
from canon.containment.residuals import channels_of
from canon.containment.suspect import Suspect
from canon.errors import KeyFileError
from canon.graph import ChannelGraph
from canon.verify.architecture import Architecture
from canon.verify.side import movable
from canon.verify.traced import Traced


def other_heads(expected: Architecture, extracted: Traced) -> tuple[str, ...]:
    """Layers with other outputs, or tables with other entries, than the owner's: made for another task."""
    graph = extracted.graph
    made = {graph.maps[p.map].name for space in graph.spaces if not movable(space) for p in space.producers}
    made |= {linear.name for linear in graph.maps if linear.columns is None}
    other = tuple(difference.layer for difference in expected.differences(extracted.architecture))
    if set(other) - made:
        raise KeyFileError("the key's steps do not make the layers that it names", where=other[0])
    return other


def first_spaces(graph: ChannelGraph) -> frozenset[str]:
    """Spaces that are made from the model's input alone."""
    makers = {space.name: [graph.maps[p.map].columns for p in space.producers] for space in graph.spaces}
    return frozenset(name for name, columns in makers.items() if columns and all(c is None for c in columns))


def layers_of(
    graph: ChannelGraph,
    architecture: Architecture,
    found: Mapping[int, Found],
    residuals: Mapping[str, Tensor],
    *,
    by_key: bool,
    placed: Set[int],
) -> tuple[LocatedLayer, ...]:
    """Every layer of the owner's: how many of its channels were found, and how far they are from the owner's.

    In spaces that were `placed` a channel stands in its place whatever it holds.
    """
    first, rows, layers = first_spaces(graph), channels_of(graph), []
    for name in architecture.shapes:
        items = [(found[space], repeat) for space, repeat in rows[name] if space in found]
        if not items:
            continue
        here = torch.cat([item.accepted.found.repeat_interleave(repeat) for item, repeat in items])
        heard = torch.cat([(~item.silent).repeat_interleave(repeat) for item, repeat in items])
        far = residuals[name][here & heard]
        known = torch.cat([item.accepted.distinct.repeat_interleave(repeat) for item, repeat in items])
        # A space may have been found by other layers that make it. A key tells channels apart, not their layers.
        near = residuals[name] < 1
        if by_key:
            near = known if any(space in placed for space, _ in rows[name]) else torch.ones_like(here)
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


def spaces_of(graph: ChannelGraph, found: Mapping[int, Found]) -> tuple[LocatedSpace, ...]:
    """Every space: whose channels they are."""
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


def notes_on(given: Suspect, heads: Sequence[str], mixed: int) -> tuple[str, ...]:
    """What else must be said: `heads` have another number of outputs, so many spaces were in another basis."""
    notes = [f"the layer '{name}' has another number of outputs, and stays the suspect's" for name in heads]
    if given.housed is not None:
        notes.append(f"the suspect is another program; brought into the owner's in {len(given.housed.steps)} steps")
        for what, names in (
            ("owner's without a counterpart", given.housed.missing),
            ("left out", given.housed.surplus),
        ):
            notes += [f"{what}: {', '.join(names[:8])}{' …' if len(names) > 8 else ''}"] if names else []
    if mixed:
        notes.append(f"the channels of {mixed} linear spaces were sums of the owner's, and were brought into its basis")
    if given.form.restored:
        notes.append(f"{len(given.form.restored)} norms that the suspect's layers had taken up were put back")
    if given.form.folded:
        notes.append(f"{len(given.form.folded)} norms that the owner's network does not have were folded")
    if given.cropped:
        notes.append(f"{len(given.cropped)} kernels had grown, and were cropped")
    return tuple(notes)
