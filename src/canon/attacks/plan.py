"""The plan: what every space becomes, decided before any weight is read.

The plan knows how large the attacked model will be, so that an attack that does not fit is refused before anything is
allocated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Final

import torch
from torch import Tensor

from canon.attacks import registry
from canon.attacks.blend import Blend
from canon.attacks.channels import Channels, Kind, deal_shares
from canon.attacks.interface import Setting
from canon.attacks.options import AttackOptions
from canon.attacks.place import Place, Surroundings
from canon.attacks.placement import interleave, shuffle
from canon.attacks.sequence import sequences
from canon.errors import AttackError
from canon.graph import ChannelGraph, Space

SPREAD: Final = 2**-3
"""How far camouflage spreads equal shares, relative to them.

A sum of many terms that are exactly equal rounds in the same direction at every step. In float32 that would show in the
outputs; unequal by an eighth, the terms round to either side.
"""

MOST_CHANNELS: Final = 1_000_000
"""Channels of one space beyond which no attack goes on: a long sequence would take all memory before its size is
known."""


@dataclass(frozen=True, eq=False)
class SpacePlan:
    """What one space becomes."""

    space: Space
    place: Place
    """What it allows."""

    sequence: tuple[str, ...]
    """The primitives, in order."""

    skipped: Mapping[str, str]
    """Primitives that could do nothing here, with the reason."""

    channels: Channels
    """What every channel is."""

    model: Tensor
    """The original channel whose per-channel parameters each channel takes: its own, or one drawn for a dummy."""

    share: Tensor
    """How strongly live channels read it, relative to its origin; mostly 0 for dummies."""

    gains: Mapping[int, Tensor]
    """Camouflage scale of every channel, by tap."""

    @property
    def after(self) -> int:
        """Channels after the attack."""
        return self.channels.width

    @cached_property
    def kind(self) -> Tensor:
        """`Kind` of every channel, over all blocks."""
        return self.channels.kind.flatten()

    @cached_property
    def counts(self) -> list[int]:
        """How many channels of every `Kind` there are."""
        found: list[int] = torch.bincount(self.kind, minlength=len(Kind)).tolist()
        return found

    @cached_property
    def blend(self) -> Blend | None:
        """What the filters of channels are made of that are not plain."""
        return Blend.of(self.channels)

    @cached_property
    def filter(self) -> Tensor:
        """Dummies of one origin have one filter; every live channel has its own, so that copies differ in noise."""
        width, origin = self.after, self.channels.origin.flatten()
        return torch.where(self.kind == Kind.LIVE, torch.arange(width), width + origin - self.channels.before)

    @cached_property
    def filters(self) -> int:
        """How many filters there can be."""
        return self.after + self.channels.dummies


@dataclass(frozen=True, eq=False)
class AttackPlan:
    """What the whole model becomes."""

    graph: ChannelGraph
    spaces: Mapping[int, SpacePlan]
    """By space id; spaces that are not listed stay."""

    kernels: frozenset[str]
    """Weights whose kernels grow."""

    chain: bool
    """Whether dummies read dummies."""

    surroundings: Surroundings
    """What is known of the model."""

    def width(self, space: int) -> int:
        """Channels of a space after the attack."""
        return self.spaces[space].after if space in self.spaces else self.graph.spaces[space].width


def select_spaces(graph: ChannelGraph, options: AttackOptions, shapes: Mapping[str, tuple[int, ...]]) -> list[Space]:
    """The free spaces that the options name."""
    if not graph.free:
        reasons = {space.pinned for space in graph.spaces if space.pinned}
        raise AttackError("the model has nothing that may change", hint=f"Pinned: {'; '.join(sorted(reasons)[:3])}")
    chosen = []
    for space in graph.free:
        layers = [graph.maps[producer.map] for producer in space.producers]
        if not layers or (options.only_convolutions and any(len(shapes[layer.weight]) < 3 for layer in layers)):
            continue
        names = {space.name, *(layer.name for layer in layers)}
        if options.select and not any(fnmatchcase(name, p) for name in names for p in options.select):
            continue
        chosen.append(space)
    together = {peer for space in chosen for peer in space.peers} | {space.id for space in chosen}
    chosen = [space for space in graph.free if space.id in together]
    if not chosen:
        known = ", ".join(space.name for space in graph.free[:5])
        asked = ", ".join(options.select) or "only convolutions"
        raise AttackError(f"the selection matches no free space: {asked}", hint=f"Free spaces: {known}, …")
    return chosen


def make_plan(
    graph: ChannelGraph,
    options: AttackOptions,
    shapes: Mapping[str, tuple[int, ...]],
    generator: torch.Generator,
    ordinary: frozenset[str] = frozenset(),
) -> AttackPlan:
    """Decide everything but the numbers in the weights.

    Args:
        graph: The model's channel graph.
        options: What to do.
        shapes: Shape of every tensor by first name.
        generator: Source of randomness.
        ordinary: Biases of ordinary layers, which thresholds can be set with.
    """
    chosen = select_spaces(graph, options, shapes)
    if options.anchor is not None and options.anchor not in {space.name for space in chosen}:
        raise AttackError(f"the anchor '{options.anchor}' is not among the attacked spaces")
    programs = sequences(options, len(chosen), generator)
    surroundings = Surroundings(graph, ordinary)
    spaces: dict[int, SpacePlan] = {}
    for space, program in zip(chosen, programs, strict=True):
        # Spaces that must stay equally wide get the same.
        same = next((spaces[peer].sequence for peer in space.peers if peer in spaces), program)
        spaces[space.id] = _plan_space(graph, Place(space, surroundings), same, options, generator)
    _check_done(spaces.values())
    _check_even(spaces)
    if not options.select and (options.permute or options.scale):
        # Where widths must stay, channels still change places and scales.
        for space in (space for space in graph.rigid if space.producers):
            spaces[space.id] = _plan_space(graph, Place(space, surroundings), (), options, generator)
    kernels = growing_kernels(graph, frozenset(spaces)) if options.expand_kernels else frozenset()
    return AttackPlan(graph, spaces, kernels, options.chain, surroundings)


def _plan_space(
    graph: ChannelGraph,
    place: Place,
    program: tuple[str, ...],
    options: AttackOptions,
    generator: torch.Generator,
) -> SpacePlan:
    space, skipped = place.space, dict[str, str]()
    setting = Setting(options, place, generator)
    channels = Channels.of(space.width, space.groups)
    for name in program:
        primitive, width = registry.get(name), channels.block
        obstacle = primitive.obstacle(setting)
        if obstacle is not None:
            skipped[name] = obstacle
            continue
        channels = primitive.apply(channels, setting)
        if channels.width > MOST_CHANNELS:
            raise AttackError(
                f"the attacked layer would have more than {MOST_CHANNELS:,} channels",
                where=space.name,
                hint="Lower the ratio, or shorten the sequence",
            )
        if options.permute:
            channels = shuffle(channels, generator)
        else:
            channels = interleave(channels, channels.block - width, generator)
    if options.permute and channels.width == space.width:
        channels = shuffle(channels, generator)  # every primitive was skipped
        if space.trading:
            channels = channels.trade(torch.randperm(space.groups, generator=generator))
    # Dummies are modelled on a channel of their own block; those of one origin on the same.
    block = space.width // space.groups
    drawn = torch.randint(block, (max(1, channels.dummies),), generator=generator)
    drawn = drawn[(channels.origin - space.width).clamp_(min=0)] + torch.arange(space.groups)[:, None] * block
    model = torch.where(channels.kind == Kind.LIVE, channels.origin, drawn).flatten()
    taps: list[int] = []
    if options.scale and options.anchor in (None, space.name):
        taps = [tap for tap in graph.space_taps(space) if tap not in graph.fixed_taps]
    low, high = options.scale_range
    factors = torch.rand((len(taps), channels.width), generator=generator, dtype=torch.float64)
    gains = dict(zip(taps, factors.mul_(high - low).add_(low), strict=True))
    for tap in _turnable(graph, space, taps):
        gains[tap] *= torch.randint(2, (channels.width,), generator=generator) * 2 - 1
    shares = deal_shares(channels, _share_spread(options), generator)
    done = tuple(name for name in program if name not in skipped)
    return SpacePlan(space, place, done, skipped, channels, model, shares, gains)


def _turnable(graph: ChannelGraph, space: Space, taps: Sequence[int]) -> list[int]:
    """Taps behind a gate, whose other branch takes either sign."""
    gates = {graph.taps[stage.output] for stage in space.stages if stage.kind == "mul"}
    return [tap for tap in taps if tap in gates & graph.signed_taps]


def _check_done(plans: Iterable[SpacePlan]) -> None:
    plans = list(plans)
    if not any(planned.sequence for planned in plans):
        reasons = {f"{name}: {reason}" for planned in plans for name, reason in planned.skipped.items()}
        raise AttackError(
            "no space of the model allows what was asked for",
            where=", ".join(planned.space.name for planned in plans[:3]),
            hint=f"Name other operations. {'; '.join(sorted(reasons)[:3])}",
        )


def _check_even(plans: Mapping[int, SpacePlan]) -> None:
    for planned in plans.values():
        if any(plans[peer].after != planned.after for peer in planned.space.peers):
            raise AttackError(
                "the operations would leave spaces differently wide that must stay equally wide",
                where=planned.space.name,
                hint="Name other operations",
            )


def _share_spread(options: AttackOptions) -> float:
    if options.split_shares == "random":
        return 1.0
    return SPREAD if options.scale else 0.0


def growing_kernels(graph: ChannelGraph, attacked: frozenset[int]) -> frozenset[str]:
    """Weights of attacked convolutions, of one layer only, whose kernel may grow together with its padding."""
    allowed: set[str] = set()
    barred: set[str] = set()
    for linear in graph.maps:
        touched = any(s.space in attacked for s in (*linear.rows, *(linear.columns or ())))
        (allowed if touched and linear.cropping is not None else barred).add(linear.weight)
    for space in graph.spaces:
        for stage in space.stages:
            if stage.kind == "depthwise":
                grows = space.id in attacked and stage.cropping is not None
                (allowed if grows else barred).add(stage.params["weight"])
    names = Counter(graph.aliases.values())
    return frozenset(name for name in allowed - barred if names[name] == 1)


def count_parameters(plan: AttackPlan, shapes: Mapping[str, tuple[int, ...]], parameters: Collection[str]) -> int:
    """Entries of those tensors of the attacked model that are parameters."""
    sizes = {name: list(shape) for name, shape in shapes.items()}
    for linear in plan.graph.maps:
        size = sizes[linear.weight]
        size[linear.row_axis] = sum(plan.width(s.space) * s.repeat for s in linear.rows)
        if linear.columns is not None:
            columns = sum(plan.width(s.space) * s.repeat for s in linear.columns)
            size[linear.column_axis] = columns // linear.groups
        if linear.bias is not None:
            sizes[linear.bias] = [size[linear.row_axis]]
    for name in plan.kernels:
        sizes[name][2:] = [side + 2 for side in shapes[name][2:]]
    growth: dict[tuple[str, int, int], int] = {}
    for planned in plan.spaces.values():
        for stage in planned.space.stages:
            for name in stage.params.values():
                growth[name, stage.axis, stage.offset] = (planned.after - planned.space.width) * stage.repeat
    for (name, axis, _), more in growth.items():
        sizes[name][axis] += more
    return sum(math.prod(size) for name, size in sizes.items() if name in parameters)
