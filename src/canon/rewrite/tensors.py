"""Apply space rewrites to a model's tensors, layer by layer, reading each tensor once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from canon.graph import ChannelGraph, LinearMap, Segment, Stage
from canon.graph.mapped import results
from canon.rewrite.axes import parameter_axis, repeated
from canon.rewrite.offsets import offsets
from canon.rewrite.spec import SpaceRewrite
from canon.rewrite.weights import rescale_norm, scale_axis, write_vector, write_weight
from canon.transforms import ChannelTransform, entries

Rewrites = Mapping[int, SpaceRewrite]
"""Rewrites by space id; a space that is not listed stays."""

WriteWeight = Callable[[int, LinearMap], Tensor]
"""Writes the weight of a map, given with its number."""


def rewrite_tensors(tensors: Mapping[str, Tensor], graph: ChannelGraph, rewrites: Rewrites) -> dict[str, Tensor]:
    """The tensors that change, by first name. Nothing given is modified."""
    changed = results(tensors)
    for name, tensor in written(tensors, graph, rewrites):
        changed[name] = tensor
    return changed


def written(
    tensors: Mapping[str, Tensor], graph: ChannelGraph, rewrites: Rewrites, write: WriteWeight | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that changes, one after the other, each once: a layer may be called twice, a tensor shared.

    Args:
        tensors: The tensors before.
        graph: Their channel graph.
        rewrites: What to do.
        write: Writes weights, where more is known of them than their rewrite.
    """
    added, done = offsets(tensors, graph, rewrites), set[str]()
    for index, linear in enumerate(graph.maps):
        rows = row_transform(linear, rewrites)
        read = any(segment.space in rewrites for segment in linear.columns or ())
        if (rows is not None or read) and linear.weight not in done:
            done.add(linear.weight)
            if write is None:
                columns = column_transform(linear, rewrites)
                yield linear.weight, write_weight(tensors[linear.weight], linear, rows, columns)
            else:
                yield linear.weight, write(index, linear)
        if linear.bias is not None and linear.bias not in done and (rows is not None or index in added.layers):
            done.add(linear.bias)
            yield linear.bias, write_vector(tensors[linear.bias], rows, added.layers.get(index))
    names = {name for space in graph.spaces for stage in space.stages for name in stage.params.values()}
    given = {name: added.means[name] if name in added.means else tensors[name] for name in names}
    yield from {**added.means, **rewrite_stages(given, graph, rewrites)}.items()


def row_transform(linear: LinearMap, rewrites: Rewrites) -> ChannelTransform | None:
    """What happens to a layer's output axis, one block per segment; None: it stays."""
    return _side_by_side(linear.rows, rewrites, lambda rewrite, tap: rewrite.rows_at(tap))


def column_transform(linear: LinearMap, rewrites: Rewrites) -> ChannelTransform | None:
    """The same for its input axis."""
    return _side_by_side(linear.columns or (), rewrites, lambda rewrite, tap: rewrite.at(tap))


def _side_by_side(
    segments: Sequence[Segment], rewrites: Rewrites, at: Callable[[SpaceRewrite, int], ChannelTransform]
) -> ChannelTransform | None:
    if not any(segment.space in rewrites for segment in segments):
        return None
    blocks = [
        at(rewrites[segment.space], segment.tap).lift(segment.repeat)
        if segment.space in rewrites
        else ChannelTransform.identity(segment.length)
        for segment in segments
    ]
    return blocks[0] if len(blocks) == 1 else ChannelTransform.block_sum(blocks)


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
    before: list[Tensor | None] = []
    after: list[Tensor | None] = []
    for stretch in stretches:
        rewrite, repeat = rewrites.get(stretch.space), stretch.repeat
        source = torch.arange(graph.spaces[stretch.space].width) if rewrite is None else rewrite.source
        index.append(entries(source, repeat, stretch.offset))
        for found, point in ((before, stretch.inputs[0]), (after, stretch.output)):
            gain = None if rewrite is None else rewrite.gain(graph.taps[point])
            found.append(gain if gain is None else repeated(gain, repeat))
    picked = {
        role: t.index_select(parameter_axis(stage, role), torch.cat(index).to(t.device)) for role, t in given.items()
    }
    gain_in, gain_out = _joined(before, index), _joined(after, index)
    if stage.kind == "norm":
        return _norm(stage, picked, gain_in, gain_out)
    if stage.kind in ("depthwise", "scale"):
        picked["weight"] = scale_axis(picked["weight"], _ratio(gain_out, gain_in), stage.axis)
    if stage.kind in ("depthwise", "shift") and "bias" in picked:
        picked["bias"] = scale_axis(picked["bias"], gain_out, parameter_axis(stage, "bias"))
    return picked


def _joined(gains: Sequence[Tensor | None], stretches: Sequence[Tensor]) -> Tensor | None:
    """Factors along an axis, stretch by stretch; None: all are 1."""
    if all(gain is None for gain in gains):
        return None
    ones = (torch.ones(stretch.numel(), dtype=torch.float64) for stretch in stretches)
    return torch.cat([one if gain is None else gain for gain, one in zip(gains, ones, strict=True)])


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
