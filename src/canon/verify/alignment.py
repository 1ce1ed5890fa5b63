"""`align`: a recovered model in the reference's layout, made only of its own numbers.

The steps of the layout are gone through in order. Each matches a space's channels with the reference's, and the ratio
of their scales is the factor by which the recovered channel is larger. Order and factors are all that the result
takes from the reference: they go through the same rewrite that an attack uses, so the function stays, and no weight,
bias or statistic is ever written that is not the model's own times such a factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from statistics import fmean
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from canon._shown import Shown
from canon.errors import KeyFileError, VerificationError
from canon.graph import ChannelGraph, Example, Space, arguments, plain
from canon.graph.tracer import check_module
from canon.rewrite import SpaceRewrite, rewrite
from canon.transforms import ChannelTransform
from canon.verify.architecture import Architecture
from canon.verify.key import LayoutKey
from canon.verify.layout import Layout, Step, check_complete, coordinates, ratios, survey
from canon.verify.matching import Matching, check_matching, distance_to_nearest, match, nearest_other, traded
from canon.verify.naming import named_alike
from canon.verify.owner_bases import in_owner_bases
from canon.verify.owner_order import in_owner_order
from canon.verify.projection import project
from canon.verify.side import Description, Side, movable
from canon.verify.traced import Traced

NEARER: Final = 0.7
"""A match is distinct if the reference's next channel is farther away than the match by this factor."""

ESTABLISHED: Final = 0.5
"""Share of distinct matches from which the weights decide the order; strangers have 0.01 to 0.2, copies nearly all."""

SURE: Final = 1e-5
"""Channels this near are the same, however near others are."""

ROUNDING: Final = 5e-7
"""A factor this near to 1 is 1: float32 tells no more, and weights that were not scaled stay bit for bit."""


@dataclass(frozen=True)
class SpaceMatch:
    """How well one space's channels match."""

    name: str
    width: int
    worst: float
    """Largest distance between a channel and the reference's, in units of its own size."""

    median: float
    """Median of those distances."""

    distinct: float
    """Share of channels that are nearer to their match than to the reference's next channel by the factor `NEARER`; 1
    where the order is given."""

    ambiguous: int
    """Channels that the reference itself does not tell from another one: their order is arbitrary."""

    pinned: bool = False
    """Whether the order is given, so that there is nothing to match."""


@dataclass(frozen=True, eq=False, repr=False)
class Alignment(Shown):
    """A model in another one's layout."""

    write: Callable[[], nn.Module]
    """Writes the model."""

    spaces: tuple[SpaceMatch, ...]
    """One for every space that layers make; pinned ones keep their order and are only compared."""

    orders: Mapping[str, Tensor]
    """By space: the model's channel that stands at each place of the reference."""

    gains: Mapping[str, Mapping[int, Tensor]]
    """By space and tap: the factor that each channel was multiplied by, in the reference's order."""

    @cached_property
    def model(self) -> nn.Module:
        """Computes what it did, with channels in the reference's order and scale. Written when it is asked for."""
        return self.write()

    def _shown(self) -> Mapping[str, object]:
        return {
            "established": self.established,
            "spaces": len(self.spaces),
            "distinct": self.distinct,
            "worst": self.worst,
        }

    @property
    def matched(self) -> tuple[SpaceMatch, ...]:
        """The spaces whose order had to be found."""
        return tuple(space for space in self.spaces if not space.pinned)

    @property
    def distinct(self) -> float:
        """Share of distinct matches over all channels; 1 where nothing is free to move."""
        total = sum(space.width for space in self.matched)
        return sum(space.distinct * space.width for space in self.matched) / total if total else 1.0

    @property
    def worst(self) -> float:
        """Largest distance over all channels."""
        return max((space.worst for space in self.spaces), default=0.0)

    @property
    def median(self) -> float:
        """Mean of the spaces' median distances."""
        return fmean(space.median for space in self.spaces) if self.spaces else 0.0

    @property
    def established(self) -> bool:
        """Whether the models are so alike that the weights alone decide the order of most channels."""
        return self.distinct >= ESTABLISHED

    @property
    def established_everywhere(self) -> bool:
        """Whether the weights alone decide the order in every space; channels that are the same have any order."""
        return all(space.distinct + space.ambiguous / space.width >= ESTABLISHED for space in self.matched)

    def established_at(self, spaces: Iterable[str]) -> bool:
        """Whether the weights alone decide the order, in these spaces too and not only elsewhere.

        Only then may a watermark in these spaces be read from the aligned model as evidence. The order is chosen to
        agree with a reference that holds the mark; where it is not forced, a model that has nothing to do with the
        mark, or shares only its first layers with the reference, would be made to resemble the mark as well.
        """
        chosen = set(spaces)
        here = [space for space in self.matched if space.name in chosen]
        return self.established and all(space.distinct >= ESTABLISHED for space in here)


def align(
    model: nn.Module,
    reference: nn.Module | Layout | LayoutKey,
    example: Example,
    *,
    matching: Matching = "nearest",
    rescale: bool = True,
) -> Alignment:
    """Put a recovered model into a reference's layout.

    Args:
        model: The recovered model, in evaluation mode. It is not changed.
        reference: The reference, or its layout key from `register`.
        example: An input tensor, or a tuple or dict of inputs.
        matching: `nearest`, `greedy` or `optimal`.
        rescale: Also bring channels to the reference's scales.

    Raises:
        VerificationError: The models are of different architectures or widths.
    """
    check_matching(matching)
    model = plain(model)
    example = arguments(model, example)
    check_module(model)
    reference = plain(reference) if isinstance(reference, nn.Module) else reference
    if isinstance(reference, nn.Module | Layout | LayoutKey):
        model = in_owner_order(model, reference, example)
    if isinstance(reference, nn.Module):
        owner = Traced.of(reference, example)
        owner.check_finite()
        layout = survey(owner)
        model = named_alike(model, layout.architecture, example, reference=reference)
        traced = Traced.like(model, example, owner)
        traced.check_finite()
        turned = in_owner_bases(model, owner)
        if turned is not model:
            traced = Traced.like(in_owner_order(turned, reference, example), example, owner)
    else:
        if not isinstance(reference, Layout | LayoutKey):
            check_module(reference)
        layout, norms = (reference.layout, reference.norms) if isinstance(reference, LayoutKey) else (reference, None)
        traced = Traced.of(named_alike(model, layout.architecture, example, norms=norms or ()), example)
    traced.check_finite()
    _check_widths(layout.architecture, traced.architecture)
    found = align_traced(traced, layout, matching=matching, rescale=rescale)
    _ = found.model  # what was given may change after this call
    return found


def align_traced(traced: Traced, layout: Layout, *, matching: Matching, rescale: bool) -> Alignment:
    """Put a model into a layout; its numbers are known to be finite, and its architecture to be that of the layout.

    Raises:
        KeyFileError: The layout comes from a key, and leaves out spaces or layers of the model.
    """
    graph = traced.graph
    check_complete(layout.steps, graph)
    with torch.no_grad():
        aligner = _Aligner(graph, layout.tensors(traced), layout, matching)
        aligner.run()
        rewrites = aligner.rewrites(rescale)
    names = {index: graph.spaces[index].name for index in rewrites}
    return Alignment(
        write=partial(rewrite, traced.model, graph, rewrites),
        spaces=tuple(aligner.figures[index] for index in sorted(aligner.figures)),
        orders={names[index]: change.source for index, change in rewrites.items()},
        gains={names[index]: change.gains for index, change in rewrites.items()},
    )


class _Aligner:
    """Goes through the steps of a layout."""

    def __init__(self, graph: ChannelGraph, tensors: Mapping[str, Tensor], layout: Layout, matching: Matching) -> None:
        self.graph, self.layout, self.matching = graph, layout, matching
        self.side = Side(graph, tensors, seed=layout.seed)
        self.match: dict[int, Tensor] = {}
        self.leader: dict[int, Tensor] = {}
        self.factors: dict[int, dict[int, Tensor]] = {}
        self.figures: dict[int, SpaceMatch] = {}

    def run(self) -> None:
        for index, step in enumerate(self.layout.steps):
            self._check(step)
            self._step(index, step, self.graph.spaces[step.space])
        missing = [s for s in self.graph.spaces if movable(s) and s.id not in self.match]
        if missing:
            raise KeyFileError("the key does not describe a space", where=missing[0].name)

    def _check(self, step: Step) -> None:
        """A key comes from a file, and may ask for what this model does not have."""
        space = self.graph.spaces[step.space] if step.space < len(self.graph.spaces) else None
        if (
            space is None
            or (movable(space) and step.last and space.id not in self.match)
            or (not movable(space) and (not step.last or step.scales))
            or space.width != len(step.label)
            or not set(step.maps) <= set(self.side.available(space))
            or not set(step.scales) <= set(self.graph.space_taps(space)) - self.graph.closed_taps
        ):
            raise KeyFileError(
                "the key describes a channel space that the model does not have",
                where=None if space is None else space.name,
                hint="The key is damaged, or was made by hand",
            )

    def _step(self, index: int, step: Step, space: Space) -> None:
        seed = self.layout.seed + index

        def exact(told: Description) -> Tensor:
            return project(told.features, self.layout.numbers, seed=seed)

        def distance(told: Description, these: Tensor) -> Tensor:
            return distance_to_nearest(exact(told)[these], step.features)

        found = self.side.like_owner(space, step.maps, distance)
        features = exact(found)
        old = self.match.get(space.id)
        known: Mapping[int, Tensor] | None = None
        other = features.new_zeros(space.width)
        if step.last:
            paired = torch.arange(space.width) if old is None else old
        else:
            label = step.label if old is None else step.label[old]
            if space.trading and old is None:
                label = traded(features, step.features, label, step.label)
            paired, other = match(features, step.features, label, step.label, self.matching)
            self.match[space.id], self.leader[space.id] = paired, step.leader
            named = coordinates(paired, step.leader, found.scales, step.scales, found.constants)
            self.side.place(space, named, frozenset(named.factors))
            self.factors[space.id] = {}
            if np.array_equal(named.index, paired.numpy()):
                known = {tap: torch.from_numpy(factor) for tap, factor in named.factors.items()}
        if not step.scales.keys() <= found.scales.keys():
            raise KeyFileError("the key has a scale where nothing is known", where=space.name)
        if step.scales:
            factors = ratios(found.scales, step.scales, paired) if known is None else known
            together = torch.stack(tuple(factors.values()))
            together = together.masked_fill((together - 1).abs() <= ROUNDING, 1.0)
            self.factors[space.id].update(zip(factors, together, strict=True))
        self.figures[space.id] = _figures(space, step, features, paired, other)

    def rewrites(self, rescale: bool) -> dict[int, SpaceRewrite]:
        """What puts every matched space into the reference's order and scale."""
        found = {}
        for space, paired in self.match.items():
            source = torch.argsort(paired)
            factors = self.factors[space] if rescale else {}
            found[space] = SpaceRewrite(
                before=source.numel(),
                source=source,
                transform=ChannelTransform.permutation(source),
                gains={tap: 1 / factor[source] for tap, factor in factors.items()},
                factors=factors,
            )
        return found


def _figures(space: Space, step: Step, features: Tensor, paired: Tensor, other: Tensor) -> SpaceMatch:
    """How well channels match; none of the reference but the match is nearer than `other`."""
    distance = torch.linalg.vector_norm(features - step.features.index_select(0, paired), dim=1)
    distinct = (distance <= SURE) | (distance <= NEARER * other) | (not movable(space))
    unsure = torch.nonzero(~distinct).flatten()
    if unsure.numel():
        chosen = paired[unsure]
        following = nearest_other(features[unsure], step.label[chosen], step.features, step.label, chosen)
        distinct[unsure] = distance[unsure] <= NEARER * following
    shared = step.leader[step.leader != torch.arange(space.width)]
    return SpaceMatch(
        name=space.name,
        width=space.width,
        worst=float(distance.max()),
        median=float(distance.median()),
        distinct=float(distinct.double().mean()),
        ambiguous=shared.numel() + len(set(shared.tolist())),
        pinned=not movable(space),
    )


def _check_widths(expected: Architecture, got: Architecture) -> None:
    differences = expected.differences(got)
    if differences:
        raise VerificationError(
            f"{len(differences)} of {len(expected.shapes)} layers have other widths than the reference: "
            f"{differences[0]}",
            where=differences[0].layer,
            hint="Recover the model first; if the reference has redundant channels of its own, recover it too",
        )
