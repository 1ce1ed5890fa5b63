"""Apply space rewrites to a model's tensors, layer by layer, reading each tensor once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from canon.graph import ChannelGraph, LinearMap, Segment, Stage
from canon.graph.mapped import results
from canon.rewrite.spec import SpaceRewrite
from canon.rewrite.weights import Move, apply_grouped, gather_axis, move_axes, rescale_norm, scale_axis
from canon.transforms import ChannelTransform

Rewrites = Mapping[int, SpaceRewrite]
"""Rewrites by space id; a space that is not listed stays."""


def rewrite_tensors(tensors: Mapping[str, Tensor], graph: ChannelGraph, rewrites: Rewrites) -> dict[str, Tensor]:
    """The tensors that change, by first name. Nothing given is modified."""
    changed = results(tensors)
    for linear in graph.maps:
        rows = any(s.space in rewrites for s in linear.rows)
        columns = any(s.space in rewrites for s in linear.columns or ())
        # A layer that is called twice, or a weight that two layers share, is rewritten once.
        if (rows or columns) and linear.weight not in changed:
            changed[linear.weight] = _rewrite_weight(tensors[linear.weight], linear, rewrites, rows, columns)
        if rows and linear.bias is not None:
            changed[linear.bias] = rewrite_rows(tensors[linear.bias], linear.rows, rewrites, 0)
    changed.update(rewrite_stages(tensors, graph, rewrites))
    return changed


def _rewrite_weight(weight: Tensor, linear: LinearMap, rewrites: Rewrites, rows: bool, columns: bool) -> Tensor:
    """Where channels only move and scale on both axes, that is one pass over the weight."""
    transform = column_transform(linear, rewrites) if columns else None
    if linear.groups == 1 and (transform is None or transform.is_gather):
        moves = {linear.row_axis: _row_move(linear.rows, rewrites) if rows else Move()}
        if transform is not None:
            moves[linear.column_axis] = Move(transform.rows, None if transform.is_unit else transform.values)
        return move_axes(weight, moves.get(0, Move()), moves.get(1, Move()))
    if rows:
        weight = rewrite_rows(weight, linear.rows, rewrites, linear.row_axis)
    return weight if transform is None else _apply_columns(transform, weight, linear)


def rewrite_rows(tensor: Tensor, segments: Sequence[Segment], rewrites: Rewrites, axis: int) -> Tensor:
    """Rows move and take their gain."""
    move = _row_move(segments, rewrites)
    assert move.index is not None, "rows are named one by one"
    return scale_axis(tensor.index_select(axis, move.index.to(tensor.device)), move.gain, axis)


def _row_move(segments: Sequence[Segment], rewrites: Rewrites) -> Move:
    index, gains = [], []
    for segment in segments:
        rewrite = rewrites.get(segment.space)
        source = torch.arange(segment.length // segment.repeat) if rewrite is None else rewrite.source
        index.append(_entries(source, segment.repeat) + segment.offset)
        gain = None if rewrite is None else rewrite.gain(segment.tap)
        gains.append(_gain(gain, source.numel(), segment.repeat))
    return Move(torch.cat(index), _side_by_side(gains))


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
    return _apply_columns(column_transform(linear, rewrites), weight, linear)


def _apply_columns(transform: ChannelTransform, weight: Tensor, linear: LinearMap) -> Tensor:
    if linear.groups > 1:
        return apply_grouped(transform, weight, linear.groups)
    return transform.apply(weight, linear.column_axis)


def rewrite_stages(tensors: Mapping[str, Tensor], graph: ChannelGraph, rewrites: Rewrites) -> dict[str, Tensor]:
    """Per-channel parameters. One tensor may belong to several spaces, side by side; it is written once."""
    changed: dict[str, Tensor] = {}
    for stretches in stage_layers(graph):
        if not any(stage.space in rewrites for stage in stretches):
            continue
        stage = stretches[0]
        given = {role: tensors[name] for role, name in stage.params.items()}
        written = _rewrite_layer(stretches, given, graph, rewrites)
        changed.update({stage.params[role]: tensor for role, tensor in written.items()})
    return changed


def stage_layers(graph: ChannelGraph) -> list[list[Stage]]:
    """The stages that hold parameters, each with its stretches in all spaces, in order; once if it is called twice."""
    found: dict[tuple[str, ...], dict[int, Stage]] = defaultdict(dict)
    for space in graph.spaces:
        for stage in space.stages:
            if stage.params:
                found[stage.kind, *stage.params.values()].setdefault(stage.offset, stage)
    return [[stretches[offset] for offset in sorted(stretches)] for stretches in found.values()]


def _rewrite_layer(
    stretches: Sequence[Stage], given: Mapping[str, Tensor], graph: ChannelGraph, rewrites: Rewrites
) -> dict[str, Tensor]:
    """One layer's parameters over all the spaces that it belongs to."""
    stage, index = stretches[0], []
    before: list[Gain] = []
    after: list[Gain] = []
    for stretch in stretches:
        rewrite = rewrites.get(stretch.space)
        source = torch.arange(graph.spaces[stretch.space].width) if rewrite is None else rewrite.source
        index.append(_entries(source, stretch.repeat) + stretch.offset)
        for found, point in ((before, stretch.inputs[0]), (after, stretch.output)):
            gain = None if rewrite is None else rewrite.gain(graph.taps[point])
            found.append(_gain(gain, source.numel(), stretch.repeat))
    picked = {role: gather_axis(t, torch.cat(index), _axis(stage, role)) for role, t in given.items()}
    gain_in, gain_out = _side_by_side(before), _side_by_side(after)
    if stage.kind == "norm":
        return _norm(stage, picked, gain_in, gain_out)
    if stage.kind in ("depthwise", "scale"):
        picked["weight"] = scale_axis(picked["weight"], _ratio(gain_out, gain_in), stage.axis)
    if stage.kind in ("depthwise", "shift") and "bias" in picked:
        picked["bias"] = scale_axis(picked["bias"], gain_out, _axis(stage, "bias"))
    return picked


def _axis(stage: Stage, role: str) -> int:
    """The channel axis of a parameter."""
    return 0 if stage.kind != "shift" and role == "bias" else stage.axis


def _entries(channels: Tensor, repeat: int) -> Tensor:
    """The entries of an axis that belong to channels."""
    return channels if repeat == 1 else (channels[:, None] * repeat + torch.arange(repeat)).flatten()


Gain = tuple[Tensor | None, int]
"""Factors along a stretch of an axis, and its length; None: all are 1."""


def _gain(gain: Tensor | None, channels: int, repeat: int) -> Gain:
    wide = gain if gain is None or repeat == 1 else gain.repeat_interleave(repeat)
    return wide, channels * repeat


def _side_by_side(gains: Sequence[Gain]) -> Tensor | None:
    if all(gain is None for gain, _ in gains):
        return None
    return torch.cat([torch.ones(n, dtype=torch.float64) if gain is None else gain for gain, n in gains])


def _norm(
    stage: Stage, picked: dict[str, Tensor], gain_in: Tensor | None, gain_out: Tensor | None
) -> dict[str, Tensor]:
    if gain_in is None and gain_out is None:
        return picked
    assert {"weight", "bias"} <= set(picked), "taps around a plain norm are fixed"
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
