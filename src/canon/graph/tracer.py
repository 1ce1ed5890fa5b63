"""`trace`: from a model and an example input to its channel graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn

from canon.errors import ExampleError, TraceError, TrainingModeError, UnsupportedModelError
from canon.graph.build import build
from canon.graph.export import export_steps
from canon.graph.frontend import Attach, FrontendError, Step, _values, fx_steps, tensor_names
from canon.graph.lint import lint
from canon.graph.rules import lookup
from canon.graph.spec import ChannelGraph
from canon.graph.state import Layout, State, Value

Frontend = Callable[
    [nn.Module, tuple[Any, ...], dict[str, str]], Iterator[tuple[Step, Attach]]
]


def trace(model: nn.Module, example: Tensor | tuple[Any, ...]) -> ChannelGraph:
    """Trace a model into channel spaces.

    Args:
        model: A module in evaluation mode. It is not changed, and no forward pass is run.
        example: An input tensor, or a tuple of the forward pass's arguments. Only shapes and dtypes matter.

    Returns:
        The channel graph: spaces, maps, taps, and every pin with its reason.

    Raises:
        TrainingModeError: The model is in training mode.
        UnsupportedModelError: The model holds quantized parameters.
        ExampleError: The example does not fit the model.
        TraceError: The forward pass cannot be traced.
    """
    inputs = example if isinstance(example, tuple) else (example,)
    check_model(model)
    check_example(model, inputs)
    _, aliases = tensor_names(model)
    try:
        return _trace_with("fx", fx_steps, model, inputs, aliases)
    except FrontendError as error:
        first = error
    try:
        return _trace_with("export", export_steps, model, inputs, aliases)
    except FrontendError as second:
        if first.node is not None:
            raise ExampleError(
                f"the model does not run on an example of shape {_shapes(inputs)}: {first}",
                where=first.node,
                hint="Give an example input like those the model was trained on",
            ) from first
        raise TraceError(
            f"the forward pass cannot be traced. torch.fx: {first}. torch.export: {second}",
            where=type(model).__name__,
            hint="Remove control flow that depends on tensor values, or pass the traceable part of the model",
        ) from first


def check_model(model: nn.Module) -> None:
    """Refuse what cannot be traced, with the reason."""
    if not isinstance(model, nn.Module):
        raise TraceError(
            f"expected a torch.nn.Module, got {type(model).__name__}",
            hint="Build the model first and load the weights into it",
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise TraceError(
            "TorchScript modules have no Python forward pass",
            hint="Pass the original torch.nn.Module",
        )
    if model.training:
        raise TrainingModeError(
            "the model is in training mode", hint="Call model.eval() before tracing"
        )
    for name, module in model.named_modules():
        if type(module).__module__.startswith(("torch.ao.nn.quantized", "torch.nn.quantized")):
            raise UnsupportedModelError(
                "the model is quantized", where=name, hint="Dequantize it to a float model first"
            )
    for name, tensor in model.named_parameters():
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
    method: Literal["fx", "export"],
    frontend: Frontend,
    model: nn.Module,
    inputs: tuple[Any, ...],
    aliases: dict[str, str],
) -> ChannelGraph:
    state = State()
    for step, attach in frontend(model, inputs, aliases):
        state.node = step.node
        attach(_follow(state, step))
    tensors, _ = tensor_names(model)
    graph = build(state, aliases, method)
    lint(graph, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    return graph


def _follow(state: State, step: Step) -> Any:
    """Apply the rule of one step, or pin what it touches."""
    operands = list(_values((step.args, step.kwargs)))
    interesting = any(v.layout is not None or v.param is not None for v in operands)
    layouts: Any = None
    if step.call is None:
        state.pin_value([step.args, step.kwargs], step.reason)
    elif interesting:
        rule = lookup(step.call.name)
        assert rule is not None, "front ends look rules up"
        state.followed.clear()
        try:
            layouts = rule(state, step.call, *step.args, **step.kwargs)
        except (TypeError, AttributeError, IndexError, ValueError) as error:
            # The operation was called in a way its rule does not know: pin, never guess.
            state.pin_value([step.args, step.kwargs], f"{step.call.name}: {error}")
        else:
            operands = [v for v in operands if v.param not in state.followed]
    for value in operands:
        if value.param is not None:
            state.foreign.setdefault(value.param, step.node)
    return _with_layouts(step.out, layouts)


def _with_layouts(out: Any, layouts: Any) -> Any:
    if isinstance(out, Tensor):
        return Value(out, layouts if isinstance(layouts, Layout) else None)
    if isinstance(out, (list, tuple)):
        known = layouts if isinstance(layouts, list) else [layouts] * len(out)
        return [_with_layouts(o, known[i]) for i, o in enumerate(out)]
    return out


def _shapes(inputs: tuple[Any, ...]) -> str:
    return ", ".join(str(tuple(x.shape)) for x in inputs if isinstance(x, Tensor))
