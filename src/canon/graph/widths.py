"""Does the forward pass depend on how many channels there are?

A program holds sizes as numbers: a factor `x.shape[1] ** -0.5`, a branch over a width, or a slice that
happens to be whole leaves no trace in it. So the question is put to the model: a copy with wider free spaces, each by
another amount, must give the same program. Only shapes are looked at; no forward pass is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, fx, nn

from canon.graph.frontend import FrontendError
from canon.graph.recorded import Program
from canon.graph.sizes import update_sizes
from canon.graph.spec import ChannelGraph, Segment, Space
from canon.graph.state import State
from canon.graph.tensors import clone_with, tensor_names
from canon.graph.values import Parts

_MOST_EXPORTS = 16
_PERIOD = 7
_WIDTH_OPERANDS = {"conv": 6, "group_norm": 1}
"""Operands that are widths by nature: groups of a depthwise convolution, of a norm per channel."""


def keep_dependent(
    graph: ChannelGraph, model: nn.Module, program: Program, state: State, again: Callable[[nn.Module], Program]
) -> ChannelGraph:
    """The graph with every space rigid whose width decides what the forward pass computes.

    Numbers that were assumed to be lengths of channel axes must have grown with them.

    Args:
        graph: What was found, with all of these assumed.
        model: The model.
        program: Its program.
        state: The records that the graph was made from.
        again: Gives the program of another model.
    """
    budget = [_MOST_EXPORTS]

    def independent(spaces: Sequence[Space]) -> bool:
        budget[0] -= 1
        # Where blocks repeat some are widened alike, far from each other, so that these are run once too.
        period = _PERIOD if program.repeated else len(spaces)
        extra: dict[int, int] = {}
        for index, space in enumerate(spaces):
            alike = [extra[peer] for peer in space.peers if peer in extra]
            extra[space.id] = alike[0] if alike else space.groups * (1 + index % period)
        try:
            wide = again(_widened(model, graph, extra))
        except FrontendError:
            return False
        return _operations(wide) == _operations(program, _grown(state, extra))

    def dependent(spaces: Sequence[Space]) -> list[Space]:
        if not spaces or (budget[0] > 0 and independent(spaces)):
            return []
        half = len(spaces) // 2
        if not half or budget[0] <= 0:
            return list(spaces)
        found = dependent(spaces[:half]) + dependent(spaces[half:])
        return found or list(spaces)  # each half is fine alone: the widths depend on each other

    if independent(graph.free):
        return graph
    doubtful = {space for item in state.assumed for space, _ in _spaces(state, item.parts)}
    others = dependent([space for space in graph.free if space.id not in doubtful])
    held = others + dependent([space for space in graph.free if space.id in doubtful])
    rest = [space for space in graph.free if space not in held]
    # Each may be fine alone: widths can depend on each other.
    return _rigid(graph, held if not rest or independent(rest) else graph.free)


def _spaces(state: State, parts: Parts) -> list[tuple[int, int]]:
    """The spaces that parts belong to, with their repeats."""
    resolved = state.blocks.resolve_parts(parts)
    return [(state.space_of[part.block], part.repeat) for part in resolved if part.block in state.space_of]


def _grown(state: State, extra: Mapping[int, int]) -> dict[str, dict[tuple[int, ...], int]]:
    """By node and operand: how much larger a number must be when spaces are wider."""
    found: dict[str, dict[tuple[int, ...], int]] = {}
    for item in state.assumed:
        more = sum(extra.get(space, 0) * repeat for space, repeat in _spaces(state, item.parts))
        found.setdefault(item.node, {})[item.path] = more
    return found


def _rigid(graph: ChannelGraph, spaces: Sequence[Space]) -> ChannelGraph:
    """The same with some widths that must stay: a program that computes with them computes the same as ever then."""
    reason = "the forward pass depends on the number of channels (program)"
    held = {space.id for space in spaces}
    held |= {peer for space in spaces for peer in space.peers}
    return replace(
        graph, spaces=tuple(replace(s, rigid=s.rigid or reason) if s.id in held else s for s in graph.spaces)
    )


def _operations(program: Program, grown: Mapping[str, Mapping[tuple[int, ...], int]] | None = None) -> list[Any]:
    """What a program computes, without the names of its nodes; with some of its numbers larger."""
    known: dict[fx.Node, str] = {}
    found: list[Any] = []

    def shown(node: fx.Node) -> str:
        return known.setdefault(node, program.names.get(node.name, f"%{len(known)}"))

    for node in program.graph.nodes:
        if node.op == "placeholder":
            continue  # a tensor of the model has its name; what else comes in, its first use
        target = str(node.target) if node.op == "call_function" else node.op
        args = list(node.args)
        for path, more in (grown or {}).get(node.name, {}).items():
            _enlarge(args, path, more)
        for name, position in _WIDTH_OPERANDS.items():
            if target.startswith(f"aten.{name}") and len(args) > position:
                args[position] = None
        operands = repr(fx.map_arg((tuple(args), node.kwargs), shown))
        found.append((target, operands, shown(node)))
    return found


def _enlarge(args: list[Any], path: tuple[int, ...], more: int) -> None:
    position = path[0]
    if len(path) == 1:
        args[position] += more
    else:
        args[position] = [*args[position]]
        _enlarge(args[position], path[1:], more)


def _widened(model: nn.Module, graph: ChannelGraph, extra: Mapping[int, int]) -> nn.Module:
    """A copy of a model with more channels in some spaces; its numbers mean nothing."""
    tensors, _ = tensor_names(model)
    sizes: dict[tuple[str, int], int] = {}
    for linear in graph.maps:
        more = _more(linear.rows, extra)
        sizes[linear.weight, linear.row_axis] = more
        if linear.bias is not None:
            sizes[linear.bias, 0] = more
        sizes[linear.weight, linear.column_axis] = _more(linear.columns or (), extra) // linear.groups
    stages = {
        (name, stage.axis, stage.offset): extra.get(space.id, 0) * stage.repeat
        for space in graph.spaces
        for stage in space.stages
        for name in stage.params.values()
    }
    for (name, axis, _), more in stages.items():
        sizes[name, axis] = sizes.get((name, axis), 0) + more
    replaced: dict[int, Tensor] = {}
    for name, tensor in tensors.items():
        shape = [size + sizes.get((name, axis), 0) for axis, size in enumerate(tensor.shape)]
        wide = tensor.detach() if shape == list(tensor.shape) else tensor.new_empty(shape)
        is_parameter = isinstance(tensor, nn.Parameter)
        replaced[id(tensor)] = nn.Parameter(wide, requires_grad=False) if is_parameter else wide
    result = clone_with(model, replaced)
    for module in result.modules():
        update_sizes(module)
    return result


def _more(segments: Sequence[Segment], extra: Mapping[int, int]) -> int:
    return sum(extra.get(segment.space, 0) * segment.repeat for segment in segments)
