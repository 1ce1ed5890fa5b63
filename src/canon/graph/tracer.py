"""`trace`: from a model and an example input to its channel graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from canon.errors import ExampleError, TraceError, TrainingModeError, UnsupportedModelError
from canon.graph.alike import built_alike
from canon.graph.build import build
from canon.graph.experts import expert_tensors, take_apart
from canon.graph.export import export_program, program_operations
from canon.graph.frontend import Attach, FrontendError, Operation
from canon.graph.inputs import Example, arguments
from canon.graph.lint import check_fit, lint
from canon.graph.recorded import Program, record
from canon.graph.rules import FOLDING, IDENTITY, MOVES, PRODUCTS, ZEROS, Call, lookup
from canon.graph.spec import ChannelGraph
from canon.graph.state import State
from canon.graph.symbolic import fx_operations
from canon.graph.tensors import clone_with, meta_clone, modules_of, shared, tensor_names, unsaved_names
from canon.graph.values import ChannelAxis, Value, extents_in, values_in
from canon.graph.widths import keep_dependent

Frontend = Callable[[dict[str, str]], Iterator[tuple[Operation, Attach]]]
"""Given every tensor's first name by name, the steps of a forward pass."""


def trace(model: nn.Module, example: Example) -> ChannelGraph:
    """Trace a model into channel spaces.

    Args:
        model: A module in evaluation mode. It is not changed, and no forward pass is run.
        example: An input tensor, or a tuple of the forward pass's arguments, or a dict of them by name. Only shapes and
            dtypes matter.

    Returns:
        The channel graph: spaces, maps, taps, and every pin with its reason.

    Raises:
        TrainingModeError: The model is in training mode.
        UnsupportedModelError: The model holds quantized parameters.
        ExampleError: The example does not fit the model.
        TraceError: The forward pass cannot be traced.
    """
    check_model(model)
    given = arguments(model, example)
    inputs = given if isinstance(given, tuple) else (given,)
    check_example(model, inputs)
    try:
        apart = take_apart(meta_clone(model)) if expert_tensors(model) else model
        return _trace_with("fx", partial(fx_operations, apart, inputs), apart)[0]
    except FrontendError as error:
        first = error
    try:
        return _run_once(model, inputs)
    except FrontendError as second:
        if first.node is not None:
            raise ExampleError(
                f"the model does not run on an example of shape {_shapes(inputs)}: {first}",
                where=first.node,
                hint="Give an example input like those the model was trained on; on the command line, "
                "the shape of one as --size 3x224x224",
            ) from first
        raise TraceError(
            f"the forward pass cannot be traced. torch.fx: {first}. torch.export: {second}",
            where=type(model).__name__,
            hint="Remove control flow that depends on tensor values, or pass the traceable part of the model",
        ) from first


def _run_once(model: nn.Module, inputs: tuple[Any, ...]) -> ChannelGraph:
    """Trace by a program of the forward pass; the last few graphs are kept for models that are built alike."""
    kind = _kind_of(inputs)
    for known, shapes, graph in _KEPT:
        if shapes == kind and built_alike(known, model):
            return graph
    try:
        graph = _by_program(take_apart(meta_clone(model)), partial(record, example=inputs), "recorded")
    except FrontendError:
        apart = take_apart(clone_with(model, shared(model))) if expert_tensors(model) else model
        graph = _by_program(apart, partial(export_program, example=inputs), "export")
    _KEPT.appendleft((meta_clone(model), kind, graph))
    return graph


def _by_program(
    model: nn.Module, program_of: Callable[[nn.Module], Program], method: Literal["recorded", "export"]
) -> ChannelGraph:
    program = program_of(model)
    graph, state = _trace_with(method, partial(program_operations, model, program), model)
    return keep_dependent(graph, model, program, state, program_of)


_KEPT: deque[tuple[nn.Module, Any, ChannelGraph]] = deque(maxlen=6)
"""Models without their numbers, what they were traced with, and their graphs."""


def _kind_of(inputs: Any) -> Any:
    """What of an example a trace depends on: shapes, types, and whatever is no tensor."""
    if isinstance(inputs, Tensor):
        return tuple(inputs.shape), inputs.dtype
    if isinstance(inputs, (list, tuple)):
        return [_kind_of(item) for item in inputs]
    return {name: _kind_of(item) for name, item in inputs.items()} if isinstance(inputs, dict) else inputs


def trace_like(model: nn.Module, example: Example, known: nn.Module, graph: ChannelGraph) -> ChannelGraph:
    """Trace a model; one that is built like another gets that one's graph.

    Args:
        model: A module in evaluation mode.
        example: An input tensor or tuple of inputs.
        known: A model that was traced with this example.
        graph: Its channel graph.
    """
    if graph.method == "fx" and isinstance(model, nn.Module) and built_alike(known, model):
        return graph
    return trace(model, example)


def check_module(model: nn.Module) -> None:
    """Refuse what is no model, with the way to one."""
    if not isinstance(model, nn.Module):
        file = isinstance(model, str | Path)
        raise TraceError(
            f"expected a torch.nn.Module, got {type(model).__name__}",
            hint="canon.load(path) reads a model from a file" if file else "Build the model and load its weights first",
        )


def check_model(model: nn.Module) -> None:
    """Refuse what cannot be traced, with the reason."""
    check_module(model)
    if isinstance(model, torch.jit.ScriptModule):
        raise TraceError(
            "TorchScript modules have no Python forward pass",
            hint="Pass the original torch.nn.Module",
        )
    for name, module in modules_of(model):
        if module.training and type(module) is not nn.Module:  # a module without a forward pass only holds others
            what = f"the layer {type(module).__name__}" if name else "the model"
            raise TrainingModeError(
                f"{what} is in training mode", where=name or None, hint="Call model.eval() before tracing"
            )
        if type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.nn.quantized")):
            raise UnsupportedModelError(
                "the model is quantized", where=name, hint="Dequantize it to a float model first"
            )
    for name, tensor in model.named_parameters():
        if tensor.is_floating_point() and tensor.element_size() < 2:
            raise UnsupportedModelError(
                f"parameter of dtype {tensor.dtype}", where=name, hint="Convert the model with model.half() first"
            )
        if tensor.is_quantized or not (tensor.is_floating_point() or tensor.is_complex()):
            raise UnsupportedModelError(
                f"parameter of dtype {tensor.dtype}",
                where=name,
                hint="Dequantize it to a float model first",
            )


def check_example(model: nn.Module, inputs: tuple[Any, ...]) -> None:
    """The example must hold tensors of the dtype that the model computes in."""
    tensors = [x for x in inputs if isinstance(x, Tensor)]
    if not tensors:
        raise ExampleError(
            "the example holds no tensor",
            hint="Give an input tensor such as torch.randn(1, 3, 224, 224)",
        )
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    for tensor in tensors:
        if tensor.is_floating_point() and dtypes and tensor.dtype not in dtypes:
            raise ExampleError(
                f"the example is {tensor.dtype}, the model computes in {', '.join(map(str, dtypes))}",
                hint="Convert the example with example.to(dtype)",
            )


def _trace_with(
    method: Literal["fx", "recorded", "export"], frontend: Frontend, model: nn.Module
) -> tuple[ChannelGraph, State]:
    state = State()
    state.assumes = method != "fx"
    tensors, aliases = tensor_names(model)
    unsaved = {aliases[name] for name in unsaved_names(model) if name in aliases}
    known = {name: first for name, first in aliases.items() if first not in unsaved}
    state.unsaved = frozenset(unsaved)
    for step, attach in frontend(known):
        state.node = step.node
        attach(_follow(state, step))
    graph = build(state, aliases, method, tensors)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    check_fit(graph, shapes)
    lint(graph, shapes)
    return graph, state


_SIZED = frozenset({"view", "reshape", "_unsafe_view", "expand", "expand_as", "unflatten"})
"""Operations whose rules look at channel counts among their operands."""


def _follow(state: State, step: Operation) -> Any:
    """Apply the rule of one step, or pin what it touches."""
    everything = (step.args, step.kwargs)
    operands = values_in(everything)
    if _turns(step, operands):
        return Value(step.out, param=operands[0].param, turned=not operands[0].turned)
    if _reads(step, operands):
        return replace(operands[0], data=step.out)
    args, kwargs = step.args, step.kwargs
    if any(value.turned for value in operands) and (step.call is None or step.call.name not in PRODUCTS):
        args, kwargs = tree_map_only(Value, lambda v: replace(v, param=None) if v.turned else v, (args, kwargs))
    channel_axes: Any = None
    what = step.call.name if step.call else step.reason
    for name in step.hidden:
        state.foreign.setdefault(name, step.node)
        state.readers.setdefault(name, what)
    if step.call is None:
        state.pin_value(everything, step.reason)
    elif any(value.data.is_complex() for value in operands):
        state.pin_value(everything, "complex numbers")
    else:
        rule = lookup(step.call.name)
        assert rule is not None, "front ends look rules up"
        if step.call.name not in FOLDING and any(v.channels is not None and v.channels.folded for v in operands):
            rule = _stay_folded
        if step.call.name not in _SIZED:
            state.pin_value(extents_in(everything), f"the number of channels is an operand of {step.call.name}")
        state.followed.clear()
        try:
            channel_axes = rule(state, step.call, *args, **kwargs)
        except (TypeError, AttributeError, IndexError, ValueError) as error:
            # The operation was called in a way its rule does not know: pin, never guess.
            state.pin_value(everything, f"{step.call.name}: {error}")
        else:
            operands = [v for v in operands if v.param not in state.followed]
    for value in operands:
        if value.param is not None:
            state.foreign.setdefault(value.param, step.node)
            state.readers.setdefault(value.param, what)
    result = _with_channels(step.out, channel_axes)
    if isinstance(result, Value) and step.call is not None:
        kept = step.call.name in IDENTITY and bool(operands) and operands[0].zeros
        result = replace(result, zeros=step.call.name in ZEROS or kept)
    if step.stale:
        state.pin_value([step.stale, result, everything], "changed in place while a view of it is in use")
    return result


def _reads(step: Operation, operands: Sequence[Value]) -> bool:
    """Whether a step gives one of the model's tensors in another float type, or lets it stand otherwise in memory."""
    given = operands[0] if len(operands) == 1 else None
    return (
        step.call is not None
        and step.call.name in ("to", "float", "double", "contiguous")
        and not step.stale
        and given is not None
        and given.param is not None
        and given.channels is None
        and isinstance(step.out, Tensor)
        and step.out.is_floating_point()
        and given.data.is_floating_point()
    )


def _turns(step: Operation, operands: Sequence[Value]) -> bool:
    """Whether a step puts the two axes of one of the model's tensors the other way around, and does nothing else."""
    if step.call is None or step.call.name not in MOVES or step.stale or len(operands) != 1:
        return False
    given = operands[0]
    if given.param is None or given.data.ndim != 2 or given.channels is not None:
        return False
    return step.call.function(torch.empty(1, 2)).shape == (2, 1)


def _stay_folded(state: State, call: Call, *args: Any, **kwargs: Any) -> None:
    """An operation on channels that a reshape has in several axes."""
    state.pin_value([args, kwargs], "reshape splits the channel axis")


def _with_channels(out: Any, channel_axes: Any) -> Any:
    if isinstance(out, Tensor):
        return Value(out, channel_axes if isinstance(channel_axes, ChannelAxis) else None)
    if isinstance(out, (list, tuple)):
        known = channel_axes if isinstance(channel_axes, list) else [channel_axes] * len(out)
        return [_with_channels(o, known[i]) for i, o in enumerate(out)]
    return out


def _shapes(inputs: tuple[Any, ...]) -> str:
    return ", ".join(str(tuple(x.shape)) for x in inputs if isinstance(x, Tensor))
