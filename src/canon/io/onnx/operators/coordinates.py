"""Which of torch's interpolations does what an ONNX node asks for.

ONNX combines rules for coordinates and for rounding freely, torch has a few fixed ones. They are compared on a ramp:
interpolated, it gives the coordinate that every new position reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_MOST = 1 << 14
"""Positions that are compared on one axis."""


@dataclass(frozen=True)
class Axis:
    """An axis that is interpolated."""

    size: int
    factor: float | None
    """How much larger it becomes, where the node says so; else its new size is given."""

    open: bool
    """Whether the file leaves its size open."""


def kinds(mode: str, spatial: int) -> list[dict[str, Any]]:
    """What torch offers for a mode of ONNX."""
    if mode == "nearest":
        return [{"mode": "nearest"}, {"mode": "nearest-exact"}]
    name = {"linear": ("linear", "bilinear", "trilinear"), "cubic": ("", "bicubic", "")}[mode][spatial - 1]
    return [{"mode": name, "align_corners": False}, {"mode": name, "align_corners": True}]


def agrees(axis: Axis, size: int, mode: str, where: str, rounding: str, kind: dict[str, Any]) -> bool:
    """Whether a kind of torch reads the coordinates that ONNX wants."""
    whole = size % axis.size == 0 if axis.factor is None else axis.factor >= 1 and axis.factor == int(axis.factor)
    if (
        axis.open
        and not whole
        and (mode, where, rounding) != ("nearest", "asymmetric", "floor")
        and not (mode == "linear" and where == "half_pixel")
    ):
        return False
    if max(axis.size, size) > _MOST:
        return False
    ramp = torch.arange(axis.size, dtype=torch.float64)[None, None]
    linear = {**kind, "mode": kind["mode"] if mode == "nearest" else "linear"}
    target = {"size": size} if axis.factor is None else {"scale_factor": axis.factor}
    found = functional.interpolate(ramp, **target, **linear)[0, 0]
    expected = _coordinates(axis, size, where)
    if expected is None:
        return False
    if mode == "nearest":
        expected = _rounded(expected, rounding)
    return bool((found - expected.clamp(0, axis.size - 1)).abs().max() < 1e-4)


def _coordinates(axis: Axis, size: int, where: str) -> Tensor | None:
    """Where every new position reads, by the formulas of ONNX."""
    scale = size / axis.size if axis.factor is None else axis.factor
    new = torch.arange(size, dtype=torch.float64)
    if where == "asymmetric":
        return new / scale
    if where == "half_pixel" or (where == "pytorch_half_pixel" and size > 1):
        return (new + 0.5) / scale - 0.5
    if where == "pytorch_half_pixel":
        return torch.zeros_like(new)
    if where == "align_corners":
        length = size if axis.factor is None else axis.factor * axis.size
        return new * (axis.size - 1) / (length - 1) if length > 1 else torch.zeros_like(new)
    return None


def _rounded(places: Tensor, rounding: str) -> Tensor:
    if rounding == "floor":
        return places.floor()
    if rounding == "ceil":
        return places.ceil()
    if rounding == "round_prefer_ceil":
        return (places + 0.5).floor()
    return (places - 0.5).ceil()
