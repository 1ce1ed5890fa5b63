"""Per-channel parameters of an attacked model: norms, depthwise kernels, layer scales, shifts, slopes.

Every channel takes those of its model channel, scaled exactly as its camouflage asks. Then null dummies get the shifts
that keep them null, dead ones those that keep them down, and members of odd groups their part of the shift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from canon.attacks.channels import Kind, among
from canon.attacks.plan import AttackPlan, SpacePlan
from canon.graph import Stage
from canon.rewrite import SpaceRewrite
from canon.rewrite.tensors import rewrite_stages, stage_layers
from canon.transforms import ChannelTransform, entries

MARGIN: Final = 0.25
"""How far below its threshold a norm holds a dead channel, at least."""


def write_parameters(tensors: Mapping[str, Tensor], plan: AttackPlan) -> dict[str, Tensor]:
    """The per-channel tensors that change, by first name."""
    rewrites = {
        index: SpaceRewrite(
            planned.space.width,
            planned.model,
            ChannelTransform.expansion(planned.model, planned.share, planned.space.width),
            planned.gains,
        )
        for index, planned in plan.spaces.items()
    }
    changed = rewrite_stages(tensors, plan.graph, rewrites)
    for name in plan.kernels & changed.keys():
        changed[name] = pad(changed[name], (1, 1) * (changed[name].ndim - 2))
    for stretches in stage_layers(plan.graph):
        if any(stretch.space in plan.spaces for stretch in stretches):
            _adapt(changed, stretches, plan)
    return changed


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer of per-channel parameters, over all the spaces that it belongs to."""

    tensors: dict[str, Tensor]
    """The changed tensors, by name; their entries are changed in place."""

    stage: Stage
    """Its first stretch."""

    def add_to(self, role: str, entries: Tensor, values: Tensor) -> None:
        """Put numbers into one of its tensors."""
        tensor = self.tensors[self.stage.params[role]]
        tensor[entries] = values.to(tensor)

    def read(self, role: str, entries: Tensor) -> Tensor:
        """Numbers of one of its tensors, in float64; ones where it has no such tensor."""
        name = self.stage.params.get(role)
        if name is None:
            return torch.ones(entries.numel(), dtype=torch.float64, device=entries.device)
        return self.tensors[name][entries].double()

    def silence(self, entries: Tensor, value: Tensor) -> None:
        """Make channels zero that arrive as these constants."""
        shift = self.stage.params.get("bias")
        if self.stage.kind != "norm":
            if shift is not None:
                axis = self.stage.axis if self.stage.kind == "shift" else 0
                self.tensors[shift].index_fill_(axis, entries, 0.0)
        elif shift is None:
            self.add_to("mean", entries, value)
        else:
            slope = self.read("weight", entries) / torch.sqrt(self.read("var", entries) + self.stage.eps)
            self.add_to("bias", entries, slope * (self.read("mean", entries) - value))

    def sink(self, entries: Tensor, threshold: float) -> None:
        """Let a norm give channels that arrive as zero or less a value below a threshold, with a margin."""
        if "weight" in self.stage.params:
            self.add_to("weight", entries, self.read("weight", entries).abs())
        slope = self.read("weight", entries) / torch.sqrt(self.read("var", entries) + self.stage.eps)
        if "bias" in self.stage.params:
            margin = self.read("bias", entries).abs() * MARGIN + MARGIN
            self.add_to("bias", entries, threshold - margin + slope * self.read("mean", entries).clamp(max=0))
        else:
            distance = (MARGIN - threshold) / slope.clamp(min=torch.finfo(torch.float32).tiny)
            self.add_to("mean", entries, self.read("mean", entries).abs() + distance)

    def turn(self, entries: Tensor, shift: Tensor) -> None:
        """Multiply everything that shifts a channel."""
        for role in ("bias", "mean"):
            name = self.stage.params.get(role)
            if name is not None and (role == "bias" or self.stage.kind == "norm"):
                axis = self.stage.axis if self.stage.kind == "shift" else 0
                tensor = self.tensors[name]
                shape = [-1 if dim == axis else 1 for dim in range(tensor.ndim)]
                turned = tensor.index_select(axis, entries).double() * shift.view(shape)
                tensor.index_copy_(axis, entries, turned.to(tensor))


def _adapt(changed: dict[str, Tensor], stretches: Sequence[Stage], plan: AttackPlan) -> None:
    """Give a layer's parameters to dummies as their kinds ask, in all the spaces that it belongs to."""
    stage, begin = stretches[0], 0
    layer = Layer(changed, stage)
    for stretch in stretches:
        planned, repeat = plan.spaces.get(stretch.space), stretch.repeat
        if planned is not None:
            device = changed[next(iter(stage.params.values()))].device
            for channels, treat in _treatments(planned, stretch, layer):
                treat(entries(channels, repeat, begin).to(device))
        begin += plan.width(stretch.space) * repeat


def _treatments(planned: SpacePlan, stage: Stage, layer: Layer) -> Iterator[tuple[Tensor, Callable[[Tensor], None]]]:
    """Which channels need something of a layer, and what."""
    kind, counts = planned.kind, planned.counts
    if counts[Kind.ZERO_IN]:
        value = torch.tensor(planned.place.constants[stage.inputs[0]], dtype=torch.float64)
        yield (
            torch.nonzero(kind == Kind.ZERO_IN).flatten(),
            lambda e: layer.silence(e, value.to(e.device).expand(len(e))),
        )
    if counts[Kind.DEAD_RANGE] or counts[Kind.DEAD_DATA]:
        depths = planned.place.depths
        if depths.levels.get(stage.inputs[0]) == "zero":
            dead = torch.nonzero(among(kind, (Kind.DEAD_RANGE, Kind.DEAD_DATA))).flatten()
            yield dead, lambda e: layer.silence(e, torch.zeros(len(e), dtype=torch.float64, device=e.device))
        elif stage.kind == "norm":
            dead = torch.nonzero(kind == Kind.DEAD_RANGE).flatten()
            yield dead, lambda e: layer.sink(e, depths.threshold)
    if planned.blend is not None and planned.place.forms.get(stage.inputs[0]) == "linear":
        turned = torch.nonzero(planned.blend.shift != 1).flatten()
        shift = planned.blend.shift[turned].repeat_interleave(stage.repeat)
        yield turned, lambda e: layer.turn(e, shift.to(e.device))
