"""The walk: the owner's spaces one after the other, each told in coordinates that name the owner's channels.

What a channel of the suspect reads of channels that are nobody's is left out, and what it reads of several copies of
one channel adds up. So a space is compared as if nothing had been added, and its own surplus falls out in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from canon.containment.backwards import Places
from canon.containment.changed import Changed
from canon.containment.constants import CONSTANTS_APART, join_constants, values_apart
from canon.containment.found import GRAIN, ROUNDING, Found
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

IN_PLACE: Final = 0.9
"""Channels that are taken in their places must be as like the owner's as this. Networks that only have first weights in
common are like it there too, and less so."""

FEW: Final = 0.3
"""Where a smaller share is found distinctly, that is hardly any."""

NEARLY_ALL: Final = 0.9
"""Where this share is found distinctly, rows that read the space are known but for little; where less is, every
direction is asked alone, and then places, where these are known."""


@dataclass(frozen=True, eq=False)
class Measured:
    """What is kept of a description when channels were compared by it: features take more memory than layers do."""

    scales: Mapping[int, Tensor]
    constants: Mapping[int, Array]


class Walk:
    """Sweeps over the owner's steps.

    Where rows do not find most channels of a space, each is taken for the one at its place, where `places` has any.
    """

    def __init__(
        self,
        graph: ChannelGraph,
        tensors: Mapping[str, Tensor],
        portrait: Portrait,
        places: Mapping[int, Places] | None = None,
        owner: Traced | None = None,
    ) -> None:
        self.graph, self.portrait, self.places = graph, portrait, places or {}
        self.placed = set[int]()
        """Spaces whose channels were taken in their places."""

        self.unscaled = set[int]()
        """Spaces whose rows do not tell scales, as the first of them may be another's, but whose places do."""

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
                self._match(index, step, space, self._describe(index, step, space))
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
                self._match(index, step, space, told)
                self._seen[space.id] = basis
                if self._unmix(space):
                    measured, told = self._told(index, step, space)
                    self._match(index, step, space, told or self._describe(index, step, space))
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

    def _match(self, index: int, step: Step, space: Space, told: Description) -> None:
        """Match a space by its rows, or by its places where rows tell less."""
        yardstick, features = self.yardsticks[index], self.features(step, space, told)
        channels = len(step.label)
        if channels % space.groups:
            raise _unfitting(space)
        everyone = torch.arange(channels)
        if movable(space):
            pairs, accepted, mirror, bar = self._by_rows(step, space, yardstick, told, features)
        else:
            pairs, accepted, mirror, bar = self._by_place(step, yardstick, features, everyone)
        given = self.places.get(space.id)
        placed, unscaled = False, given is not None and accepted.alone
        if given is not None and accepted.told < NEARLY_ALL * channels:
            pairs, accepted, mirror, bar = self._by_place(step, yardstick, features, given.match, IN_PLACE)
            placed = unscaled = True
        self.placed = self.placed | {space.id} if placed else self.placed - {space.id}
        self.unscaled = self.unscaled | {space.id} if unscaled else self.unscaled - {space.id}
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

    def _by_rows(
        self, step: Step, space: Space, yardstick: Yardstick, told: Description, features: Tensor
    ) -> tuple[Pairs, Accepted, Tensor, Bar]:
        """Whose channels a space's are, and mirror images, by all that makes them."""
        channels = len(step.label)
        own = torch.arange(channels) // (channels // space.groups)
        ours = traded(features, step.features, blocks(space), own) if space.trading else blocks(space)
        labels, flips = (ours, own), self._flips(space)
        bar = Bar(yardstick.dimension, channels, max(step.shuffled, self.mixed.get(space.id, 0.0)))
        pairs = compare(yardstick, features, *labels, step.leader, flips)
        accepted = accept(pairs, step.leader, bar, LEAST)
        limit = CONSTANTS_APART
        if any(consumer.tap in self.graph.fixed_taps for consumer in space.consumers):
            limit = values_apart(yardstick, self.portrait.reduced)
        pairs, accepted = join_constants(pairs, accepted, yardstick, step, features, told.scales, labels, limit)
        if accepted.told < NEARLY_ALL * channels:
            pairs, accepted = by_one_direction(step, features, (*labels, flips), pairs, accepted)
        mirror = torch.empty(0, dtype=torch.int64)
        if self._mirrors(space):
            pairs, accepted, mirror = with_images(yardstick, features, labels, bar.cosine, pairs, accepted)
        return pairs, accepted, mirror, bar

    def _by_place(
        self, step: Step, yardstick: Yardstick, features: Tensor, places: Tensor, least: float = 0.0
    ) -> tuple[Pairs, Accepted, Tensor, Bar]:
        """Every channel compared with the one that it is given out for."""
        bar = Bar(yardstick.dimension, len(step.label), max(step.shuffled, least))
        pairs = _given(yardstick, features, places)
        return pairs, accept(pairs, step.leader, bar, -1.0), torch.empty(0, dtype=torch.int64), bar

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
            if space.id in self.unscaled:
                read = {consumer.tap for consumer in space.consumers}
                given = self.places[space.id].factor
                return {tap: given if tap in read else torch.ones_like(given) for tap in found}
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


def _given(yardstick: Yardstick, features: Tensor, places: Tensor) -> Pairs:
    """Every channel compared with the owner's at its place, or with none where that is -1."""
    ours = yardstick.measure(features)
    if ours.shape[0] != places.numel():  # another number of outputs: another task
        places = torch.full((ours.shape[0],), -1)
    index = places.clamp(min=0)
    cosine = (ours.double() * yardstick.owner[index].double()).sum(dim=1).masked_fill(places < 0, -2.0)
    none = torch.where(places < 0, -2.0, torch.zeros_like(cosine))
    return Pairs(index, cosine, none, torch.zeros_like(places, dtype=torch.bool))
