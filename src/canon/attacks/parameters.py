"""Per-channel parameters of an attacked model: norms, depthwise kernels, layer scales, shifts, slopes.

Every channel takes those of its model channel, scaled exactly as its camouflage asks; null dummies then get the shifts
that keep them null.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from canon.attacks.plan import AttackPlan
from canon.graph import Stage
from canon.rewrite import SpaceRewrite
from canon.rewrite.tensors import rewrite_stages, stage_layers
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
    changed = rewrite_stages(tensors, plan.graph, rewrites)
    for name in plan.kernels & changed.keys():
        changed[name] = pad(changed[name], (1, 1) * (changed[name].ndim - 2))
    for stretches in stage_layers(plan.graph):
        _silence(changed, stretches, plan)
    return changed


def _silence(changed: dict[str, Tensor], stretches: Sequence[Stage], plan: AttackPlan) -> None:
    """Make a layer give zero for channels that have no input, in all the spaces that it belongs to."""
    stage, begin = stretches[0], 0
    shift = stage.params.get("bias")
    found: list[Tensor] = []
    given: list[float] = []
    for stretch in stretches:
        planned = plan.spaces.get(stretch.space)
        if planned is not None and planned.silent.numel():
            silent = planned.silent
            if stretch.repeat > 1:
                silent = (silent[:, None] * stretch.repeat + torch.arange(stretch.repeat)).flatten()
            found.append(silent + begin)
            given.append(planned.constants[stretch.inputs[0]])
        begin += plan.width(stretch.space) * stretch.repeat
    if not found or (shift is None and stage.kind != "norm"):
        return
    device = changed[next(iter(stage.params.values()))].device
    entries = torch.cat(found).to(device)
    if stage.kind != "norm":
        assert shift is not None, "checked above"
        changed[shift].index_fill_(stage.axis if stage.kind == "shift" else 0, entries, 0.0)
        return
    lengths = torch.tensor([part.numel() for part in found])
    value = torch.tensor(given, dtype=torch.float64).repeat_interleave(lengths).to(device)
    mean, var = (changed[stage.params[role]][entries].double() for role in ("mean", "var"))
    if shift is None:
        changed[stage.params["mean"]][entries] = value.to(changed[stage.params["mean"]].dtype)
        return
    weight = changed[stage.params["weight"]][entries].double() if "weight" in stage.params else 1.0
    needed = weight * (mean - value) / torch.sqrt(var + stage.eps)
    changed[shift][entries] = needed.to(changed[shift].dtype)
