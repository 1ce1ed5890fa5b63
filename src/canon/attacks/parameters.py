"""Per-channel parameters of an attacked model: norms, depthwise kernels, layer scales, shifts, slopes.

Every channel takes those of its model channel, scaled exactly as its camouflage asks; null dummies then get the shifts
that keep them null.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from canon.attacks.channels import Kind
from canon.attacks.plan import AttackPlan, SpacePlan
from canon.graph import ChannelGraph, Stage
from canon.rewrite import SpaceRewrite, rewrite_tensors
from canon.transforms import ChannelTransform


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
    changed = rewrite_tensors(tensors, replace(plan.graph, maps=()), rewrites)
    offsets = _offsets_after(plan.graph, plan)
    for planned in plan.spaces.values():
        silent = torch.nonzero(planned.kind == Kind.ZERO_IN).flatten()
        if silent.numel():
            for stage in planned.space.stages:
                _silence(changed, stage, silent, planned, offsets)
    return changed


def _offsets_after(graph: ChannelGraph, plan: AttackPlan) -> dict[tuple[str, int], int]:
    """Where the stretch of a tensor that began at an offset begins after the attack."""
    stretches: dict[str, dict[int, int]] = defaultdict(dict)
    for space in graph.spaces:
        for stage in space.stages:
            for name in stage.params.values():
                stretches[name][stage.offset] = plan.width(space.id) * stage.repeat
    offsets = {}
    for name, lengths in stretches.items():
        begin = 0
        for offset in sorted(lengths):
            offsets[name, offset] = begin
            begin += lengths[offset]
    return offsets


def _silence(
    changed: dict[str, Tensor],
    stage: Stage,
    silent: Tensor,
    planned: SpacePlan,
    offsets: Mapping[tuple[str, int], int],
) -> None:
    """Make a stage give zero for channels that have no input."""
    entries = {}
    for role, name in stage.params.items():
        inner = torch.arange(stage.repeat)
        index = (silent[:, None] * stage.repeat + inner).flatten() + offsets[name, stage.offset]
        entries[role] = index.to(changed[name].device)
    given = planned.constants[stage.inputs[0]]
    shift = stage.params.get("bias")
    if stage.kind == "norm":
        mean, var = (changed[stage.params[role]][entries[role]].double() for role in ("mean", "var"))
        if shift is None:
            changed[stage.params["mean"]][entries["mean"]] = given
            return
        weight = changed[stage.params["weight"]][entries["weight"]].double() if "weight" in stage.params else 1.0
        needed = weight * (mean - given) / torch.sqrt(var + stage.eps)
        changed[shift][entries["bias"]] = needed.to(changed[shift].dtype)
    elif shift is not None:
        axis = stage.axis if stage.kind == "shift" else 0
        changed[shift].index_fill_(axis, entries["bias"], 0.0)
