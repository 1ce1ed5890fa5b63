"""Thresholds above all that was seen: the shifts of channels that are dead on data.

The attacked model runs over the probes once, and every layer that holds a threshold lowers it as soon as it has seen
what its channels give; the layers behind it see them switched off already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.attacks.channels import Kind
from canon.attacks.plan import AttackPlan
from canon.attacks.probes import Inputs
from canon.errors import AttackError
from canon.graph import Segment, Stage
from canon.rewrite.tensors import stage_layers
from canon.transforms import entries

MARGIN: Final = 0.1
"""How far above the largest value the threshold is set, relative to the range that was seen."""

_LAYERS: Final = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d,
)  # fmt: skip


def ordinary_shifts(model: nn.Module) -> frozenset[str]:
    """Names of the tensors that shift the output of an ordinary layer."""
    found = [name for name, module in model.named_modules() if type(module) in _LAYERS]
    return frozenset(f"{name}.{role}".lstrip(".") for name in found for role in ("bias", "running_mean"))


@dataclass(frozen=True, eq=False)
class Valve:
    """Entries of one shift that hold channels down."""

    tensor: str
    entries: Tensor
    threshold: float


@torch.no_grad()
def set_thresholds(model: nn.Module, plan: AttackPlan, probes: list[Inputs]) -> None:
    """Lower the shifts of an attacked model, in place, until its channels that are dead on data are dead."""
    seen: set[str] = set()
    valves = _valves(plan)
    handles = []
    for valve in valves:
        path, _, role = valve.tensor.rpartition(".")
        handles.append(model.get_submodule(path).register_forward_hook(_hook(valve, role, seen)))
    try:
        for given in probes:
            model(*given)
    finally:
        for handle in handles:
            handle.remove()
    missed = sorted({valve.tensor for valve in valves} - seen)
    if missed:
        raise AttackError("the layer was never called, so no threshold could be set", where=", ".join(missed[:3]))


def _hook(valve: Valve, role: str, seen: set[str]) -> Any:
    def lower(module: Any, given: Any, output: Tensor) -> Tensor:
        axis = _channel_axis(module, output)
        places = valve.entries.to(output.device)
        held = output.index_select(axis, places)
        values = held.movedim(axis, 0).reshape(len(places), -1).double()
        top, bottom = values.amax(1), values.amin(1)
        distance = MARGIN * (top - bottom) + torch.finfo(output.dtype).eps * top.abs() + MARGIN**4
        excess = (top - valve.threshold + distance).clamp(min=0)
        shift = getattr(module, role)
        if role == "bias":
            shift[places] -= excess.to(shift)
        else:
            slope = torch.rsqrt(module.running_var[places].double() + module.eps)
            slope = slope if module.weight is None else slope * module.weight[places].double()
            shift[places] += (excess / slope).to(shift)
        seen.add(valve.tensor)
        shape = [-1 if dim == axis else 1 for dim in range(output.ndim)]
        return output.index_copy(axis, places, held - excess.to(output).view(shape))

    return lower


def _channel_axis(module: Any, output: Tensor) -> int:
    if isinstance(module, nn.Linear):
        return output.ndim - 1
    # A convolution may be given one image without a batch; a norm may not.
    return output.ndim - 1 - len(module.kernel_size) if hasattr(module, "kernel_size") else 1


def _valves(plan: AttackPlan) -> list[Valve]:
    """Every shift that holds channels down, each once."""
    found: dict[tuple[str, int], Valve] = {}
    for linear in plan.graph.maps:
        if linear.bias is not None:
            for stretch, begin in _begins(plan, linear.rows):
                _add(found, plan, linear.bias, stretch, begin)
    for stretches in stage_layers(plan.graph):
        if stretches[0].kind == "norm":
            params = stretches[0].params
            for stretch, begin in _begins(plan, stretches):
                _add(found, plan, params.get("bias", params["mean"]), stretch, begin)
    return list(found.values())


def _begins(plan: AttackPlan, stretches: Sequence[Segment | Stage]) -> Iterator[tuple[Segment | Stage, int]]:
    """Stretches of an axis, and where each begins after the attack."""
    begin = 0
    for stretch in stretches:
        yield stretch, begin
        begin += plan.width(stretch.space) * stretch.repeat


def _add(
    found: dict[tuple[str, int], Valve], plan: AttackPlan, tensor: str, stretch: Segment | Stage, begin: int
) -> None:
    planned = plan.spaces.get(stretch.space)
    if planned is None or not planned.counts[Kind.DEAD_DATA] or tensor not in planned.place.valves:
        return
    held = entries(torch.nonzero(planned.kind == Kind.DEAD_DATA).flatten(), stretch.repeat, begin)
    found[tensor, begin] = Valve(tensor, held, planned.place.depths.threshold)
