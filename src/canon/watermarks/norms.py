"""Which norm stands behind a layer, and where a layer's units are read.

Behind a convolution stands the batch norm that its output goes straight into. Behind a linear layer stands the norm
over channels (LayerNorm, RMSNorm) that runs next, if it is as wide as the layer: in a transformer the layer writes to
the residual stream, and that norm is the first to see it. Pairs are found by watching one forward pass, which holds for
any way the model is written.

A norm over channels is known by what it does and not by its name: its output stays when its input is doubled, and
its weight is the factor on it. One that adds 1 to its weight (Gemma) has another scale than its weight and is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from canon.errors import WatermarkError
from canon.watermarks.layers import (
    inner_linear,
    is_linear,
    layer_weight,
    made_of_linear,
    run_once,
    sample,
    undivided_convolutions,
    weighted_layers,
)


def norms_behind(model: nn.Module, images: Tensor) -> dict[str, str]:
    """Layers and the norm behind each, in module order: {layer: norm}."""
    pairs = {**normalised_convolutions(model, images), **_normalised_linear(model, images)}
    return {name: pairs[name] for name in weighted_layers(model) if name in pairs}


def normalised_convolutions(model: nn.Module, images: Tensor) -> dict[str, str]:
    """Undivided convolutions whose output goes straight into an affine BatchNorm2d: {conv: norm}."""
    written: list[tuple[str, Tensor]] = []
    pairs: dict[str, str] = {}
    convolutions = undivided_convolutions(model)
    norms = {
        name: module for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d) and module.affine
    }
    if not convolutions or not norms:
        return {}

    def watch_convolution(name: str, module: nn.Module) -> RemovableHandle:
        return module.register_forward_hook(lambda _module, _inputs, output: written.append((name, output)))

    def watch_norm(name: str, module: nn.Module) -> RemovableHandle:
        def look(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            pairs.update({source: name for source, value in written if value is inputs[0]})

        return module.register_forward_pre_hook(look)

    handles = [watch_convolution(name, module) for name, module in convolutions.items()]
    handles += [watch_norm(name, module) for name, module in norms.items()]
    with run_once(model, images, handles):
        return {name: pairs[name] for name in convolutions if name in pairs}


def _normalised_linear(model: nn.Module, images: Tensor) -> dict[str, str]:
    """Linear layers and the norm over channels that runs next and is as wide: {linear: norm}."""
    norms = {name: module for name, module in model.named_modules() if _may_be_norm(module)}
    linear = [name for name, module in weighted_layers(model).items() if is_linear(module)]
    if not norms or not linear:
        return {}
    last: list[str] = []
    pairs: dict[str, str] = {}
    seen: dict[str, Tensor] = {}

    def watch_layer(name: str) -> RemovableHandle:
        return model.get_submodule(name).register_forward_hook(lambda *_: last.append(name))

    def look(name: str, _module: nn.Module, inputs: tuple[object, ...]) -> None:
        if not inputs or not isinstance(inputs[0], Tensor):
            return
        seen.setdefault(name, inputs[0].detach().clone())
        if last and len(layer_weight(model, last[-1])) == len(layer_weight(model, name)) == inputs[0].shape[-1]:
            pairs.setdefault(last[-1], name)
        last.clear()

    handles = [watch_layer(name) for name in linear]
    handles += [module.register_forward_pre_hook(partial(look, name)) for name, module in norms.items()]
    with run_once(model, images, handles):
        held = {name for name, value in seen.items() if _scales_by_weight(norms[name], value)}
    return {layer: norm for layer, norm in pairs.items() if norm in held}


def _may_be_norm(module: nn.Module) -> bool:
    """Whether a module has one weight for every channel, maybe as many shifts, and no other parameter."""
    parameters = dict(module.named_parameters())
    weight = parameters.get("weight")
    return (
        weight is not None
        and not isinstance(module, nn.modules.batchnorm._BatchNorm)
        and set(parameters) <= {"weight", "bias"}
        and all(value.ndim == 1 and value.shape == weight.shape for value in parameters.values())
    )


@torch.no_grad()
def _scales_by_weight(module: nn.Module, value: Tensor) -> bool:
    """Whether the size of the input is forgotten, and nothing but the shift is left when the weight is zero."""
    large = value.float() * 1e3
    parameters = dict(module.named_parameters())
    bare = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    plain = {**bare, "weight": torch.ones_like(parameters["weight"])}
    outputs: list[Tensor] = [
        functional_call(module, given, (inputs.to(value.dtype),))
        for given, inputs in ((plain, large), (plain, 2 * large), (bare, large))
    ]
    if outputs[0].shape != value.shape or bool(outputs[2].any()) or not bool(outputs[0].any()):
        return False
    return bool((outputs[0] - outputs[1]).abs().max() <= 1e-2 * outputs[0].abs().max())


def written_norms(model: nn.Module) -> dict[str, str]:
    """`normalised_convolutions` from the model's program, where there are no images to run: {conv: norm}."""
    import torch.fx

    try:
        graph = torch.fx.symbolic_trace(model).graph
    except Exception as error:  # tracing runs the user's own code on stand-ins for tensors
        raise WatermarkError(
            f"the norms behind the marked layers cannot be found without an input: {type(error).__name__}: {error}",
            hint="Give an example input.",
        ) from error
    convolutions = undivided_convolutions(model)
    modules = dict(model.named_modules())
    pairs: dict[str, str] = {}
    for node in graph.nodes:
        norm = modules.get(str(node.target)) if node.op == "call_module" else None
        if not isinstance(norm, nn.BatchNorm2d) or not norm.affine or not node.args:
            continue
        source = node.args[0]
        if isinstance(source, torch.fx.Node) and source.op == "call_module" and source.target in convolutions:
            pairs[str(source.target)] = str(node.target)
    return {name: pairs[name] for name in convolutions if name in pairs}


def last_normalised(model: nn.Module, images: Tensor, count: int) -> tuple[str, ...]:
    """The last `count` layers with a norm of their own, or as many as there are."""
    names = tuple(norms_behind(model, images))
    if not names:
        raise WatermarkError(
            "no convolution of this model feeds a batch norm, and no linear layer stands before a norm over channels "
            "whose scale is its weight; this scheme needs one",
            hint="Choose a scheme that marks weights, such as uchida17.",
        )
    return names[-count:]


def norms_of(model: nn.Module, images: Tensor, layers: Iterable[str]) -> dict[str, str]:
    """The norm behind each named layer."""
    return _chosen(norms_behind(model, images), layers, "a linear layer before a norm over channels")


def places_behind(model: nn.Module, images: Tensor) -> dict[str, str]:
    """Where a layer's units are read before their nonlinearity: {layer: module whose output they are}.

    Behind a convolution it is the norm that it feeds, for a linear layer it is the layer itself.
    """
    pairs = normalised_convolutions(model, images)
    pairs |= {name: name for name, layer in weighted_layers(model).items() if is_linear(layer)}
    return {name: pairs[name] for name in weighted_layers(model) if name in pairs}


def places_of(model: nn.Module, images: Tensor, layers: Iterable[str]) -> dict[str, str]:
    """Where the units of each named layer are read."""
    return _chosen(places_behind(model, images), layers, "a linear layer")


def last_hidden(model: nn.Module, images: Tensor, count: int) -> tuple[str, ...]:
    """The last `count` layers with hidden units: convolutions that feed a norm, or inner linear layers.

    Of linear layers, those that write to a residual stream come last: their units are everybody's.
    """
    if not made_of_linear(model):
        return last_normalised(model, images, count)
    inner = tuple(inner_linear(model, images))
    streams = _normalised_linear(model, images)
    hidden = [name for name in inner if name not in streams] or inner
    if not hidden:
        raise WatermarkError(
            "the model has no inner linear layer whose units could carry a watermark",
            hint="Name the layers to use.",
        )
    return tuple(hidden[-count:])


def _chosen(pairs: Mapping[str, str], layers: Iterable[str], what: str) -> dict[str, str]:
    for layer in layers:
        if layer not in pairs:
            raise WatermarkError(
                f"the layer is neither an undivided convolution followed by a batch norm nor {what}, one of which "
                "this scheme needs",
                where=layer,
                hint=f"Layers that are: {sample(pairs)}.",
            )
    return {layer: pairs[layer] for layer in layers}
