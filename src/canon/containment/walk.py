"""The walk: the owner's spaces one after the other, each told in coordinates that name the owner's channels.

What a channel of the suspect reads of channels that are nobody's is left out, and what it reads of several copies of
one channel adds up. So a space is compared as if nothing had been added, and its own surplus falls out in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import numpy as np
import torch
from torch import Tensor

from canon.containment.changed import Changed
from canon.containment.constants import CONSTANTS_APART, join_constants, values_apart
from canon.containment.linear import LinearSpaces
from canon.containment.matching import LEAST, Accepted, Bar, Pairs, accept, compare
from canon.containment.mirrors import with_images
from canon.containment.mixing import OwnerBases, change_basis
from canon.containment.voting import by_one_direction
from canon.containment.yardstick import Yardstick
from canon.describe import Array, Coordinates, parity
from canon.describe.curves import Curves
from canon.errors import KeyFileError
from canon.graph import ChannelGraph, LinearMap, Space
from canon.graph.mapped import keeper
from canon.verify.layout import Step, check_complete, ratios
from canon.verify.matching import traded
from canon.verify.portrait import Portrait
from canon.verify.side import Description, Side, blocks, movable
from canon.verify.traced import Traced

ROUNDING: Final = 5e-7
"""A factor this near to 1 is 1, so that what was not scaled stays bit for bit."""

GRAIN: Final = 2e-2
"""The same where the owner's scales come from the portrait of a key."""

USUAL: Final = 0.8
LARGEST: Final = 8.0
"""Factors as near to 1 as rows are to the owner's, in units of that angle: the median of a space, and all of it."""

IN_PLACE: Final = 0.9
"""Channels that are taken in their places must be as like the owner's as this. Networks that only have first weights in
common are like it there too, and less so."""

FEW: Final = 0.3
"""Where a smaller share is found distinctly, every direction is asked alone."""

NEARLY_ALL: Final = 0.9
"""Where this share is found distinctly, rows that read the space are known but for little."""

RELAPSE: Final = 0.8
"""A match by more layers counts if it finds at least this part of what fewer layers found distinctly."""


@dataclass(eq=False)
class Found:
    """What is known of one space after a sweep."""

    accepted: Accepted
    pairs: Pairs
    yardstick: Yardstick
    bar: float
    leader: Tensor
    features: Tensor
    """For every channel of the owner's: what is known of the suspect's channel that is most like it; float32."""

    silent: Tensor
    """For every channel of the owner's: whether nothing that reads it sees it change."""

    grain: float = ROUNDING
    """How exactly the owner's scales are known."""

    factors: dict[int, Tensor] = field(default_factory=dict)
    """By tap: the suspect's channel over the owner's."""

    mirror: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    """For every channel of the owner's the suspect's channel that stands for it as its mirror image, or -1; empty: not
    looked for."""

    mirror_gains: dict[int, Tensor] = field(default_factory=dict)
    """By tap: what makes the owner's channel of its mirror image's row."""

    @property
    def images(self) -> Tensor:
        """For every channel of the owner's: whether a mirror image stands for it."""
        return self.mirror >= 0 if self.mirror.numel() else torch.zeros_like(self.silent)

    @property
    def mirrored(self) -> bool:
        """Whether any row comes from a mirror image."""
        return bool(self.images.any())

    @cached_property
    def settled(self) -> dict[int, Tensor]:
        """Factors, with 1 where they are 1 as far as can be told: order alone was changed, or nothing."""
        here = self.accepted.match >= 0
        angle = (2 * (1 - self.pairs.cosine).clamp(min=0)).sqrt().clamp(min=self.grain)
        single = int(here.sum()) == int(self.accepted.found.sum())
        settled = {}
        for tap, factor in self.factors.items():
            gap = (factor - 1).abs()
            near = gap[here] / angle[here]
            if single and near.numel() and float(near.median()) <= USUAL and float(near.max()) <= LARGEST:
                settled[tap] = torch.ones_like(factor)
            else:
                settled[tap] = factor.masked_fill(gap <= ROUNDING, 1.0).masked_fill(~here, 1.0)
        return settled

    @property
    def rescaled(self) -> frozenset[int]:
        """Taps at which channels are brought to the owner's scale."""
        return frozenset(tap for tap, factor in self.settled.items() if not bool((factor == 1).all()))


@dataclass(frozen=True, eq=False)
class Measured:
    """What is kept of a description when channels were compared by it: features take more memory than layers do."""

    scales: Mapping[int, Tensor]
    constants: Mapping[int, Array]


class Walk:
    """Sweeps over the owner's steps.

    In spaces that are `in_place` every channel is taken for the one at its place, as in a pinned one.
    """

    def __init__(
        self,
        graph: ChannelGraph,
        tensors: Mapping[str, Tensor],
        portrait: Portrait,
        in_place: frozenset[int] = frozenset(),
        owner: Traced | None = None,
    ) -> None:
        self.graph, self.portrait, self.in_place = graph, portrait, in_place
        self.tensors = Changed(tensors)
        self.side = Side(graph, self.tensors, numbers=portrait.numbers, seed=portrait.seed)
        self.keep = keeper(tensors)
        self.linear = LinearSpaces(self.side, self.tensors)
        self.bases = None if owner is None else OwnerBases(owner, self.side)
        self.mixed: dict[int, float] = {}
        """By space whose basis was changed: the cosine that a stranger would reach."""

        self.yardsticks = [Yardstick.of(step, self.keep) for step in portrait.steps]
        self.final = {step.space: index for index, step in enumerate(portrait.steps)}
        self.found: dict[int, Found] = {}
        self._measured: dict[tuple[int, tuple[int, ...]], tuple[object, Measured]] = {}
        self._seen: dict[int, tuple[object, ...]] = {}
        self._curves, self._known_forms = Curves(), dict[int, dict[int, parity.Form]]()
        self.scales: dict[int, dict[int, Tensor]] = {}
        for step in portrait.steps:
            self.scales.setdefault(step.space, {}).update(step.scales)

    def run(self) -> dict[int, Found]:
        """Two sweeps: the second knows all layers, and corrects the first.

        Raises:
            KeyFileError: The steps do not fit the network.
        """
        check_complete(self.portrait.steps, self.graph)
        self._sweep({})
        self._sweep(self.found)
        return self.found

    @property
    def told(self) -> int:
        """How many of the owner's channels were found distinctly."""
        return sum(item.accepted.told for item in self.found.values())

    def begins(self) -> bool:
        """Whether rows that read the model's input alone are the owner's, many of them distinctly."""
        for index, step in enumerate(self.portrait.steps):
            if step.maps and all(self.graph.maps[m].columns is None for m in step.maps):
                space = self._space(step)
                self._match(index, step, space, self._describe(index, step, space), None)
                found = self.found[space.id]
                if int((found.accepted.distinct & ~found.images).sum()) >= FEW * len(step.label):
                    return True
        return False

    def _sweep(self, known: Mapping[int, Found]) -> None:
        self.found = {}
        for index, step in enumerate(self.portrait.steps):
            space = self._space(step)
            basis = (index, self.side.state(step.maps))
            measured, told = self._told(index, step, space)
            old = known.get(space.id)
            if (old is None or index == self.final[space.id]) and self._seen.get(space.id) != basis:
                told = told or self._describe(index, step, space)
                self._match(index, step, space, told, self.found.get(space.id, old))
                self._seen[space.id] = basis
                if self._unmix(space):
                    measured, told = self._told(index, step, space)
                    self._match(index, step, space, told or self._describe(index, step, space), None)
            elif space.id not in self.found:
                assert old is not None, "what rests on the same coordinates was matched before"
                self.found[space.id] = replace(old, factors={})
            if movable(space):
                self._place(step, space, measured)

    def _unmix(self, space: Space) -> bool:
        """Bring a linear space in which hardly anything was found into the owner's basis, if it is in another one."""
        if self.bases is None or space.id in self.mixed or not movable(space) or not self.poor(space.id):
            return False
        basis = self.bases.basis(self.linear, space)
        if basis is None or not change_basis(self.linear, space, basis):
            return False
        self.mixed[space.id] = basis.chance
        self._measured = {place: known for place, known in self._measured.items() if place[0] != space.id}
        return True

    def poor(self, space: int) -> bool:
        """Whether hardly anything of a space was found."""
        accepted = self.found[space].accepted
        return accepted.told < FEW * accepted.found.numel()

    def reads_found(self, linear: LinearMap) -> bool:
        """Whether a layer reads spaces alone in which nearly all was found: what it reads of the rest nobody knows."""
        if linear.columns is None:
            return False
        read = [self.found[segment.space].accepted for segment in linear.columns]
        return all(accepted.told >= NEARLY_ALL * accepted.found.numel() for accepted in read)

    def _told(self, index: int, step: Step, space: Space) -> tuple[Measured, Description | None]:
        """What a step says of the suspect; scales alone where nothing that it rests on has changed since."""
        state, place = self.side.state(step.maps), (space.id, step.maps)
        if place in self._measured and self._measured[place][0] == state:
            return self._measured[place][1], None
        told = self._describe(index, step, space)
        measured = Measured(told.scales, told.constants)
        self._measured[place] = (state, measured)
        return measured, told

    def _describe(self, index: int, step: Step, space: Space) -> Description:
        """What a step says of the suspect, each sign that is in doubt as it brings its channel to the owner's."""

        def distance(told: Description, these: Tensor) -> Tensor:
            return 1 - self.yardsticks[index].nearest(self.features(step, space, told)[these])

        return self.side.like_owner(space, step.maps, distance)

    def _space(self, step: Step) -> Space:
        """A key comes from a file, and may ask for what this network does not have."""
        space = self.graph.spaces[step.space] if step.space < len(self.graph.spaces) else None
        taps = () if space is None else set(self.graph.space_taps(space)) - self.graph.closed_taps
        if (
            space is None
            or not set(step.maps) <= set(self.side.available(space))
            or not set(step.scales) <= set(taps)
            or (movable(space) and step.last and space.id not in self.found)
            or (not movable(space) and not step.last)
        ):
            raise _unfitting(space)
        return space

    def features(self, step: Step, space: Space, told: Description) -> Tensor:
        """A space's features as the portrait has them."""
        features = self.portrait.features(step, told.features, told.parts)
        if features.shape[1] != step.features.shape[1] or not step.scales.keys() <= told.scales.keys():
            raise _unfitting(space)
        return features

    def _match(self, index: int, step: Step, space: Space, told: Description, before: Found | None) -> None:
        """Match a space; what fewer of its layers told more distinctly stands, for one of them may be replaced."""
        yardstick, features = self.yardsticks[index], self.features(step, space, told)
        channels = len(step.label)
        if channels % space.groups:
            raise _unfitting(space)
        free = movable(space) and space.id not in self.in_place
        if free:
            own = torch.arange(channels) // (channels // space.groups)
            ours = traded(features, step.features, blocks(space), own) if space.trading else blocks(space)
            labels = ours, own
            pairs = compare(yardstick, features, *labels, step.leader, self._flips(space))
        else:
            pairs = _given(yardstick, features)
        least = max(step.shuffled, self.mixed.get(space.id, 0.0), IN_PLACE if space.id in self.in_place else 0.0)
        bar = Bar(yardstick.dimension, channels, least)
        accepted = accept(pairs, step.leader, bar, LEAST if free else -1.0)
        if free:
            limit = CONSTANTS_APART
            if any(consumer.tap in self.graph.fixed_taps for consumer in space.consumers):
                limit = values_apart(yardstick, self.portrait.reduced)
            pairs, accepted = join_constants(pairs, accepted, yardstick, step, features, told.scales, labels, limit)
            if accepted.told < FEW * channels:
                pairs, accepted = by_one_direction(step, features, (*labels, self._flips(space)), pairs, accepted)
        mirror = torch.empty(0, dtype=torch.int64)
        if free and self._mirrors(space):
            pairs, accepted, mirror = with_images(yardstick, features, labels, bar.cosine, pairs, accepted)
        if before is not None and accepted.told < RELAPSE * before.accepted.told:
            pairs, accepted, mirror = before.pairs, before.accepted, before.mirror
        features = _best(features, accepted, pairs, step)
        if bool((mirror >= 0).any()):
            image = torch.nonzero(mirror >= 0).flatten()
            features[image] = yardstick.as_owner(features[image], image)
        features = self.keep(features)
        grain = GRAIN if self.portrait.reduced else ROUNDING
        factors = self.found[space.id].factors if space.id in self.found else {}
        silent = self._silent(space, yardstick)
        self.found[space.id] = Found(
            accepted, pairs, yardstick, bar.cosine, step.leader, features, silent, grain, factors, mirror
        )

    def _silent(self, space: Space, yardstick: Yardstick) -> Tensor:
        """Which of the owner's channels change nowhere where they are read: nothing enters, or nothing gets through."""
        if not space.consumers:
            return yardstick.still
        scales, taps = self.scales[space.id], self.graph.taps
        dead: dict[int, Tensor] = {}

        def at(point: int, before: Tensor) -> Tensor:
            scale = scales.get(taps[point])
            return before if scale is None else before | (scale == 0)

        for producer in space.producers:
            dead[producer.point] = at(producer.point, yardstick.still)
        for stage in space.stages:
            before = torch.stack([dead.get(point, yardstick.still) for point in stage.inputs]).all(dim=0)
            dead[stage.output] = at(stage.output, before)
        return torch.stack([dead.get(c.point, yardstick.still) for c in space.consumers]).all(dim=0)

    def _flips(self, space: Space) -> bool:
        """Whether the sign of all that a channel is may be turned: a signed tap that no norm behind it settles."""
        free = (self.graph.signed_taps - self.graph.fixed_taps) | self.graph.odd_taps
        read = {self.graph.taps[stage.inputs[0]] for stage in space.stages if stage.kind == "norm"}
        return any(tap in free and tap not in read for tap in self.graph.space_taps(space))

    def _mirrors(self, space: Space) -> bool:
        """Whether a channel can stand for its mirror image: what reads it sees a function whose odd part is a line."""
        forms = self._forms(space)
        read = {forms.get(consumer.point) for consumer in space.consumers}
        return not self._flips(space) and read == {"half"}

    def _forms(self, space: Space) -> Mapping[int, parity.Form]:
        if space.id not in self._known_forms:
            self._known_forms[space.id] = parity.forms(space, self._curves)
        return self._known_forms[space.id]

    def _place(self, step: Step, space: Space, told: Measured) -> None:
        found = self.found[space.id]
        match = found.accepted.match
        member = match.clamp(min=0)
        sign = torch.where(found.pairs.flipped, -1.0, 1.0).double()
        signed = self.graph.signed_taps | self.graph.odd_taps

        def against(named: Tensor) -> dict[int, Tensor]:
            found = ratios(told.scales, step.scales, named)
            if space.id in self.in_place:
                return {tap: torch.ones_like(factor) for tap, factor in found.items()}
            return {tap: factor * sign if tap in signed else factor for tap, factor in found.items()}

        found.factors.update(against(member))
        if found.mirrored:
            forms, taps = self._forms(space), self.graph.taps
            lines = {taps[point] for point, form in forms.items() if form == "linear"}
            image, used = found.mirror.clamp(min=0), found.mirror >= 0
            for tap in step.scales.keys() & told.scales.keys():
                mine, yours = told.scales[tap][image], step.scales[tap]
                usable = used & (mine != 0) & (yours != 0)
                gain = torch.where(usable, yours / torch.where(usable, mine, 1.0), 1.0)
                found.mirror_gains[tap] = -gain if tap in lines else gain
            for tap in lines - found.mirror_gains.keys():
                found.mirror_gains[tap] = torch.full((used.numel(),), -1.0, dtype=torch.float64)
        if not step.last:
            leader = step.leader[member]
            # What is nobody's has no factor: whichever it was given, nothing that reads it would have changed.
            factors = {tap: torch.where(match >= 0, f, 1.0).numpy() for tap, f in against(leader).items()}
            index = torch.where(match >= 0, leader, -1).numpy().astype(np.int64)
            named = Coordinates(index, len(step.label), factors, told.constants)
            self.side.place(space, named, frozenset(factors))
            if self.bases is not None:
                self.bases.place(step)
        self.linear.read_found(space, found.accepted)


def _best(features: Tensor, accepted: Accepted, pairs: Pairs, step: Step) -> Tensor:
    """For every channel of the owner's the features of its best match, with the owner's sign."""
    at = accepted.best.clamp(min=0)
    sign = torch.where(pairs.flipped, -1.0, 1.0).double()[at, None]
    odd = torch.cat([torch.full((part.columns,), part.numbers > 1 or not part.exact) for part in step.parts])
    return (features[at] * torch.where(odd, sign, 1.0)).float()


def _unfitting(space: Space | None) -> KeyFileError:
    return KeyFileError(
        "the key describes a channel space that the model does not have",
        where=None if space is None else space.name,
        hint="The key is damaged, or was made by hand",
    )


def _given(yardstick: Yardstick, features: Tensor) -> Pairs:
    """A pinned space: every channel is compared with the one at its place."""
    ours = yardstick.measure(features)
    everyone = torch.arange(ours.shape[0])
    if ours.shape[0] != yardstick.owner.shape[0]:
        none = torch.full((ours.shape[0],), -2.0, dtype=torch.float64)  # another number of outputs: another task
        return Pairs(torch.zeros_like(everyone), none, none, torch.zeros_like(everyone, dtype=torch.bool))
    cosine = (ours.double() * yardstick.owner.double()).sum(dim=1)
    none = torch.zeros_like(cosine)
    return Pairs(everyone, cosine, none, none.bool())
