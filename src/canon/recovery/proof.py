"""The proof of a proposal: does every layer that reads a space still get what it got?

Apart from whoever proposed it. The space is computed on values that its inputs can have, as far as facts tell, with
the tensors before and after, in float64; what readers make of it must agree: `W·y = W'·y'`. Positions stand side by
side on a circle, so that kernels see several of them. Functions that are not known are taken to be bent.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

import numpy as np
import torch
from torch import Tensor

from canon.graph import Space, Stage
from canon.recovery.facts import Facts, Subject
from canon.recovery.facts.alive import Alive
from canon.recovery.noise import OUTSTANDING
from canon.recovery.proposal import Proposal, SpaceChange
from canon.rewrite.axes import by_row, parameter_axis

POSITIONS: Final = 48
"""Values of each channel that are compared."""


def failing(subject: Subject, facts: Facts, proposal: Proposal) -> int | None:
    """The first space whose readers would notice; None: there is none.

    Args:
        subject: Before.
        facts: What is known of it.
        proposal: What is proposed.
    """
    if not proposal.changes:
        return None
    alive = Alive(subject.with_tensors(proposal.changed), {})
    for change in proposal.changes:
        after = subject.with_tensors(change.tensors)
        space = subject.graph.spaces[change.space]
        generator = torch.Generator().manual_seed(secrets.randbits(62))
        inputs = {p.map: _inputs(subject, facts, p.map, generator) for p in space.producers}
        if not _agree(subject, after, change, inputs, alive):
            return change.space
        subject = after
    return None


def _inputs(subject: Subject, facts: Facts, index: int, generator: torch.Generator) -> Tensor:
    """Values that a layer may read: `columns x kernel x positions`."""
    linear = subject.graph.maps[index]
    weight = subject.tensors[linear.weight]
    columns, kernel = weight.shape[linear.column_axis] * linear.groups, by_row(weight, linear).shape[2]
    drawn = torch.randn(columns, kernel, POSITIONS, generator=generator, dtype=torch.float64)
    for segment in linear.columns or ():
        ball = facts.ranges.ball(segment)
        if ball is not None:
            part = drawn[segment.offset : segment.offset + segment.length]
            part *= ball.radius / part.norm(dim=0)
            part *= torch.from_numpy(ball.gain)[:, None, None]
            part += torch.from_numpy(ball.shift)[:, None, None]
            continue
        low, high, _ = (torch.from_numpy(x.repeat(segment.repeat)) for x in facts.ranges.read(segment))
        size = torch.from_numpy(np.maximum(np.hypot(*facts.sizes.read(segment)), 1e-30).repeat(segment.repeat))
        part = drawn[segment.offset : segment.offset + segment.length]
        part *= size[:, None, None]
        one_sided = torch.isfinite(low) & ~torch.isfinite(high) & (low >= 0)
        part[one_sided] = part[one_sided].abs()
        part.clamp_(low[:, None, None], high[:, None, None])
    return drawn


def _agree(before: Subject, after: Subject, change: SpaceChange, inputs: Mapping[int, Tensor], alive: Alive) -> bool:
    space = before.graph.spaces[change.space]
    old, new = (_values(subject, space, inputs) for subject in (before, after))
    for consumer in space.consumers:
        linear = before.graph.maps[consumer.map]
        parts = [subject.columns(space, consumer).double().cpu().transpose(1, 2) for subject in (before, after)]
        if linear.groups == 1:
            parts = [part[alive.rows(linear)] for part in parts]  # what nobody reads in the end does not matter
        made, now = (part.flatten(0, 1) @ y[consumer.point] for part, y in zip(parts, (old, new), strict=True))
        gap, moving = made - now, made - made.mean(dim=1, keepdim=True)
        scale = moving.square().mean(dim=1).sqrt()
        # One reader among many may read next to nothing: it is judged with the others.
        scale = torch.maximum(scale, scale.square().mean().sqrt())
        allowed = max(1e-4, before.tolerance.zero) * scale + 1e-300
        if change.noise:  # of what cancels as much is left as there is noise in it, however little else there is
            mass = parts[0][..., change.channels].abs().flatten(0, 1) @ old[consumer.point][change.channels].abs()
            allowed = allowed + OUTSTANDING * change.noise * mass.square().mean(dim=1).sqrt()
        if bool((gap.square().mean(dim=1).sqrt() > allowed).any()):
            return False
    return True


def _values(subject: Subject, space: Space, inputs: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """By point: `width x positions`."""
    known: dict[int, Tensor] = {}
    tensors = subject.tensors
    for producer in space.producers:
        linear = subject.graph.maps[producer.map]
        rows = by_row(tensors[linear.weight], linear).double().cpu()
        count, columns, _ = rows.shape
        values = inputs[producer.map].view(linear.groups, columns, -1, POSITIONS).flatten(1, 2)
        made = (rows.reshape(linear.groups, count // linear.groups, -1) @ values).flatten(0, 1)
        if linear.bias is not None:
            made = made + tensors[linear.bias].detach().double().cpu()[:, None]
        part = made[producer.offset : producer.offset + space.width * producer.repeat]
        known[producer.point] = part.view(space.width, producer.repeat, -1)[:, 0]
    for stage in space.stages:
        given = [known[point] for point in stage.inputs if point in known]
        if given:
            known[stage.output] = _through(stage, space, given, tensors)
    return known


def _through(stage: Stage, space: Space, given: list[Tensor], tensors: Mapping[str, Tensor]) -> Tensor:
    x = given[0]
    if stage.kind == "add":
        return torch.stack(given).sum(0)
    if stage.kind == "mul":
        return given[0] * given[-1]
    if stage.kind == "activation":
        if stage.reach != "pointwise":
            return x
        return torch.tanh(x) if stage.function is None else stage.function(x).double()
    params = {}
    for role, name in stage.params.items():
        whole = tensors[name].detach().double().cpu().movedim(parameter_axis(stage, role), 0)
        params[role] = whole[stage.offset : stage.offset + space.width * stage.repeat].reshape(space.width, -1)
    if stage.kind == "norm":
        x = (x - params["mean"][:, :1]) * torch.rsqrt(params["var"][:, :1] + stage.eps)
    if stage.kind == "instance_norm":
        x = (x - x.mean(dim=1, keepdim=True)) * torch.rsqrt(x.var(dim=1, keepdim=True) + stage.eps)
    if stage.kind == "slope":
        return torch.where(x >= 0, x, x * params["weight"][:, :1])
    weight = params.get("weight")
    if weight is not None:
        taps = range(weight.shape[1] if stage.kind == "depthwise" else 1)
        x = torch.stack([weight[:, tap, None] * x.roll(tap, dims=1) for tap in taps]).sum(0)
    return x + params["bias"][:, :1] if "bias" in params else x
