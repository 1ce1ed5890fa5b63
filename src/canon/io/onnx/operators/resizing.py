"""Images of other sizes: interpolation, padding, and channels that become positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from canon.errors import UnsupportedModelError
from canon.io.onnx.model import Node
from canon.io.onnx.operators.coordinates import Axis, agrees, kinds
from canon.io.onnx.operators.reducing import axes_of
from canon.io.onnx.operators.registry import Result, operator
from canon.io.onnx.values import Activation, Constant, Sizes, Value

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder


@operator("Upsample")
def upsample(b: Builder, node: Node, x: Value, scales: Value | None = None) -> Result:
    """The older form of Resize."""
    given = scales if scales is not None else Constant(torch.tensor(node.attributes["scales"]))
    return _interpolate(b, b.activation(x), node.text("mode", "nearest"), "asymmetric", "floor", given, None)


@operator("Resize")
def resize(
    b: Builder,
    node: Node,
    x: Value,
    region: Value | None = None,
    scales: Value | None = None,
    sizes: Value | None = None,
) -> Result:
    """Interpolation; only those kinds that torch has too."""
    if b.opset < 11:
        region, scales = None, region
    x = b.activation(x)
    where = node.text("coordinate_transformation_mode", "half_pixel" if b.opset >= 11 else "asymmetric")
    rounding = node.text("nearest_mode", "round_prefer_floor" if b.opset >= 11 else "floor")
    if node.integer("antialias", 0) or node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise UnsupportedModelError("interpolation with antialiasing or a kept aspect ratio")
    if node.integers("axes") not in (None, list(range(2, x.rank)), list(range(x.rank))):
        raise UnsupportedModelError("interpolation over chosen axes")
    if node.integer("exclude_outside", 0):
        raise UnsupportedModelError("interpolation that leaves the outside out")
    if node.text("mode", "nearest") == "cubic" and abs(node.real("cubic_coeff_a", -0.75) + 0.75) > 1e-6:
        raise UnsupportedModelError("cubic interpolation with another coefficient than -0.75")
    if isinstance(scales, Constant) and not scales.tensor.numel():
        scales = None
    return _interpolate(b, x, node.text("mode", "nearest"), where, rounding, scales, sizes)


def _interpolate(
    b: Builder, x: Activation, mode: str, where: str, rounding: str, scales: Value | None, sizes: Value | None
) -> Result:
    spatial = x.rank - 2
    if sizes is not None:
        given = list(sizes.items) if isinstance(sizes, Sizes) else _numbers(sizes)
        target: dict[str, Any] = {"size": given[-spatial:]}
        factors: list[float] = []
    elif isinstance(scales, Constant):
        factors = [float(v) for v in scales.tensor.tolist()]
        if len(factors) == x.rank and factors[:2] != [1.0, 1.0]:
            raise UnsupportedModelError("interpolation over images or channels")
        factors = factors[-spatial:]
        target = {"scale_factor": factors}
    else:
        raise UnsupportedModelError("interpolation by computed factors")
    for kind in kinds(mode, spatial):
        result = b.call(functional.interpolate, x, **target, **kind)
        if all(agrees(axis, size, mode, where, rounding, kind) for axis, size in _axes(x, result, factors)):
            return result
    raise UnsupportedModelError(f"{mode[:40]} interpolation with {where[:40]} coordinates, {rounding[:40]}")


def _axes(x: Activation, result: Activation, factors: list[float]) -> list[tuple[Axis, int]]:
    """Every axis that is interpolated, for both choices of open sizes, with its new size."""
    return [
        (Axis(int(old.shape[axis]), factors[axis - 2] if factors else None, x.size(axis) is None), int(new.shape[axis]))
        for old, new in zip(x.hints, result.hints, strict=True)
        for axis in range(2, x.rank)
    ]


def _numbers(value: Value) -> list[int]:
    if not isinstance(value, Constant):
        raise UnsupportedModelError("sizes that are computed from values")
    return value.integers()


@operator("Pad")
def pad(
    b: Builder, node: Node, x: Value, pads: Value | None = None, fill: Value | None = None, axes: Value | None = None
) -> Result:
    """Padding of any axes."""
    x = b.activation(x)
    if pads is not None and not isinstance(pads, Constant):
        raise UnsupportedModelError("padding that is computed")
    given = pads.integers() if isinstance(pads, Constant) else node.integers("pads") or node.integers("paddings") or []
    chosen = [axis % x.rank for axis in axes_of(node, axes) or range(x.rank)]
    if len(given) != 2 * len(chosen):
        raise ValueError(f"{len(given)} numbers of padding for {len(chosen)} axes")
    amounts = [0] * (2 * x.rank)
    for index, axis in enumerate(chosen):
        amounts[2 * (x.rank - 1 - axis)] = given[index]
        amounts[2 * (x.rank - 1 - axis) + 1] = given[index + len(chosen)]
    while amounts and amounts[-2:] == [0, 0]:
        del amounts[-2:]
    if not amounts:
        return x
    mode = node.text("mode", "constant")
    if mode == "constant":
        value = (
            float(fill.tensor) if isinstance(fill, Constant) and fill.tensor.numel() == 1 else node.real("value", 0.0)
        )
        if fill is not None and not isinstance(fill, Constant):
            raise UnsupportedModelError("a padding value that is computed")
        return b.call(functional.pad, x, amounts, "constant", value)
    kind = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}[mode]
    return b.call(functional.pad, x, amounts, kind)


@operator("DepthToSpace")
def depth_to_space(b: Builder, node: Node, x: Value) -> Result:
    """Channels become positions."""
    x, block = b.activation(x), node.integer("blocksize", 1)
    if node.text("mode", "DCR") == "CRD":
        return b.call(functional.pixel_shuffle, x, block)
    channels = int(x.hints[0].shape[1]) // (block * block)
    apart = b.call(torch.unflatten, x, 1, [block, block, channels])
    moved = b.call(torch.permute, apart, [0, 3, 4, 1, 5, 2])
    return b.call(torch.flatten, b.call(torch.flatten, moved, 4, 5), 2, 3)


@operator("SpaceToDepth")
def space_to_depth(b: Builder, node: Node, x: Value) -> Result:
    """Positions become channels."""
    x, block = b.activation(x), node.integer("blocksize", 1)
    if node.text("mode", "DCR") != "DCR":
        return b.call(functional.pixel_unshuffle, x, block)
    apart = b.call(torch.unflatten, b.call(torch.unflatten, x, 3, [-1, block]), 2, [-1, block])
    moved = b.call(torch.permute, apart, [0, 3, 5, 1, 2, 4])
    return b.call(torch.flatten, moved, 1, 3)
