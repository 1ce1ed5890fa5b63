"""Apply space rewrites to a model's tensors, layer by layer, reading each tensor once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from canon.graph import ChannelGraph, LinearMap, Segment, Stage
from canon.rewrite.spec import SpaceRewrite
from canon.rewrite.weights import apply_grouped, gather_axis, rescale_norm, scale_axis
from canon.transforms import ChannelTransform

Rewrites = Mapping[int, SpaceRewrite]
"""Rewrites by space id; a space that is not listed stays."""


def rewrite_tensors(tensors: Mapping[str, Tensor], graph: ChannelGraph, rewrites: Rewrites) -> dict[str, Tensor]:
    """The tensors that change, by first name. Nothing given is modified."""
    changed: dict[str, Tensor] = {}
    for linear in graph.maps:
        rows = any(s.space in rewrites for s in linear.rows)
        columns = any(s.space in rewrites for s in linear.columns or ())
        # A layer that is called twice, or a weight that two layers share, is rewritten once.
        if (rows or columns) and linear.weight not in changed:
            weight = tensors[linear.weight]
            if rows:
                weight = rewrite_rows(weight, linear.rows, rewrites, linear.row_axis)
            if columns:
                weight = rewrite_columns(weight, linear, rewrites)
            changed[linear.weight] = weight
        if rows and linear.bias is not None:
            changed[linear.bias] = rewrite_rows(tensors[linear.bias], linear.rows, rewrites, 0)
    changed.update(rewrite_stages(tensors, graph, rewrites))
    return changed


def rewrite_rows(tensor: Tensor, segments: Sequence[Segment], rewrites: Rewrites, axis: int) -> Tensor:
    """Rows move and take their gain."""
    index, gains, scaled = [], [], False
    for segment in segments:
        rewrite = rewrites.get(segment.space)
        width = segment.length // segment.repeat
        source = torch.arange(width) if rewrite is None else rewrite.source
        inner = torch.arange(segment.repeat)
        index.append((source[:, None] * segment.repeat + inner).flatten() + segment.offset)
        gain = None if rewrite is None else rewrite.gain(segment.tap)
        scaled = scaled or gain is not None
        gain = torch.ones(source.numel(), dtype=torch.float64) if gain is None else gain
        gains.append(gain.repeat_interleave(segment.repeat))
    picked = tensor.index_select(axis, torch.cat(index).to(tensor.device))
    return scale_axis(picked, torch.cat(gains) if scaled else None, axis)


def column_transform(linear: LinearMap, rewrites: Rewrites) -> ChannelTransform:
    """What happens to a layer's input axis: one block per segment."""
    blocks = []
    for segment in linear.columns or ():
        rewrite = rewrites.get(segment.space)
        if rewrite is None:
            blocks.append(ChannelTransform.identity(segment.length))
        else:
            blocks.append(rewrite.at(segment.tap).lift(segment.repeat))
    return blocks[0] if len(blocks) == 1 else ChannelTransform.block_sum(blocks)


def rewrite_columns(weight: Tensor, linear: LinearMap, rewrites: Rewrites) -> Tensor:
    """`W ← W·M` on the input axis."""
    transform = column_transform(linear, rewrites)
    if linear.groups > 1:
        return apply_grouped(transform, weight, linear.groups)
    return transform.apply(weight, linear.column_axis)


def rewrite_stages(tensors: Mapping[str, Tensor], graph: ChannelGraph, rewrites: Rewrites) -> dict[str, Tensor]:
    """Per-channel parameters. One tensor may belong to several spaces, side by side."""
    pieces: dict[str, dict[int, tuple[int, Tensor]]] = defaultdict(dict)
    axes: dict[str, int] = {}
    touched: set[str] = set()
    for space in graph.spaces:
        rewrite = rewrites.get(space.id)
        for stage in space.stages:
            if not stage.params:
                continue
            names = set(stage.params.values())
            if rewrite is not None:
                touched |= names
            if all(stage.offset in pieces[name] for name in names):
                continue  # a layer that is called twice
            length = space.width * stage.repeat
            slices = {
                role: tensors[name].narrow(stage.axis, stage.offset, length) for role, name in stage.params.items()
            }
            if rewrite is not None:
                slices = rewrite_stage(stage, slices, rewrite, graph.taps)
            for role, name in stage.params.items():
                pieces[name][stage.offset] = (stage.offset, slices[role])
                axes[name] = stage.axis
    return {
        name: torch.cat([p for _, p in sorted(pieces[name].values(), key=lambda x: x[0])], axes[name])
        for name in touched
    }


def rewrite_stage(
    stage: Stage, slices: Mapping[str, Tensor], rewrite: SpaceRewrite, taps: Mapping[int, int]
) -> dict[str, Tensor]:
    """One stage's parameters, restricted to one space."""
    picked = {role: gather_axis(tensor, rewrite.source, stage.axis, stage.repeat) for role, tensor in slices.items()}
    gain_in = rewrite.gain(taps[stage.inputs[0]])
    gain_out = rewrite.gain(taps[stage.output])
    if stage.kind == "norm":
        return _norm(stage, picked, gain_in, gain_out)
    if stage.kind in ("depthwise", "scale"):
        ratio = _ratio(gain_out, gain_in)
        picked["weight"] = scale_axis(picked["weight"], ratio, stage.axis, stage.repeat)
    if stage.kind in ("depthwise", "shift") and "bias" in picked:
        axis = stage.axis if stage.kind == "shift" else 0
        picked["bias"] = scale_axis(picked["bias"], gain_out, axis, stage.repeat)
    return picked


def _norm(
    stage: Stage, picked: dict[str, Tensor], gain_in: Tensor | None, gain_out: Tensor | None
) -> dict[str, Tensor]:
    if gain_in is None and gain_out is None:
        return picked
    assert {"weight", "bias"} <= set(picked), "taps around a plain norm are fixed"
    if stage.repeat > 1:
        gain_in = None if gain_in is None else gain_in.repeat_interleave(stage.repeat)
        gain_out = None if gain_out is None else gain_out.repeat_interleave(stage.repeat)
    weight, bias, mean, var = rescale_norm(
        picked["weight"], picked["bias"], picked["mean"], picked["var"], stage.eps, gain_in, gain_out
    )
    return {"weight": weight, "bias": bias, "mean": mean, "var": var}


def _ratio(out: Tensor | None, given: Tensor | None) -> Tensor | None:
    if out is None and given is None:
        return None
    if given is None:
        return out
    return 1 / given if out is None else out / given
