"""Which layers of a model can carry a mark.

Defaults must make sense on any convolutional network, so they are counted from the end of the model
in module order and never by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from canon.errors import WatermarkError

Weighted = nn.Conv2d | nn.Linear
"""A layer with a weight matrix: rows are outputs, columns are inputs."""


def weighted_layers(model: nn.Module) -> dict[str, Weighted]:
    """Every Conv2d and Linear by name, in module order."""
    return {name: module for name, module in model.named_modules() if isinstance(module, (nn.Conv2d, nn.Linear))}


def undivided_convolutions(model: nn.Module) -> dict[str, nn.Conv2d]:
    """Every convolution without groups, in module order.

    A depthwise kernel has one input channel, which is too few to hide anything in.
    """
    return {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d) and module.groups == 1
    }


def last_convolutions(model: nn.Module, count: int) -> tuple[str, ...]:
    """The last `count` undivided convolutions, or as many as there are."""
    names = tuple(undivided_convolutions(model))
    if not names:
        raise WatermarkError(
            "the model has no undivided convolution to carry a watermark",
            hint="Name the layers to use.",
        )
    return names[-count:]


def normalised_convolutions(model: nn.Module, images: Tensor) -> dict[str, str]:
    """Undivided convolutions whose output goes straight into an affine BatchNorm2d: {conv: norm}.

    Found by watching one forward pass, which holds for any way the model is written.
    """
    written: list[tuple[str, Tensor]] = []
    pairs: dict[str, str] = {}

    def watch_convolution(name: str) -> torch.utils.hooks.RemovableHandle:
        module = model.get_submodule(name)
        return module.register_forward_hook(lambda _module, _inputs, output: written.append((name, output)))

    def watch_norm(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def look(_module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            pairs.update({source: name for source, value in written if value is inputs[0]})

        return module.register_forward_pre_hook(look)

    handles = [watch_convolution(name) for name in undivided_convolutions(model)]
    handles += [
        watch_norm(name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm2d) and module.affine
    ]
    training = model.training
    try:
        model.eval()
        with torch.no_grad():
            model(images)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    return {name: pairs[name] for name in undivided_convolutions(model) if name in pairs}


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
    """The last `count` convolutions with a norm of their own, or as many as there are."""
    names = tuple(normalised_convolutions(model, images))
    if not names:
        raise WatermarkError(
            "no convolution of this model feeds a batch norm, which this scheme needs",
            hint="Choose a scheme that marks weights, such as uchida17.",
        )
    return names[-count:]


def norms_of(model: nn.Module, images: Tensor, layers: Iterable[str]) -> dict[str, str]:
    """The norm that each named convolution feeds."""
    pairs = normalised_convolutions(model, images)
    for layer in layers:
        if layer not in pairs:
            raise WatermarkError(
                "the layer is not an undivided convolution followed by a batch norm, which this scheme needs",
                where=layer,
                hint=f"Layers that are: {_sample(pairs)}.",
            )
    return {layer: pairs[layer] for layer in layers}


def check_layers(model: nn.Module, layers: Iterable[str]) -> None:
    """Raise unless every name is a Conv2d or Linear of this model, named once."""
    known = weighted_layers(model)
    seen: set[str] = set()
    for layer in layers:
        if layer not in known:
            raise WatermarkError(
                f"the model has no Conv2d or Linear layer '{layer}'",
                hint=f"Its layers are: {_sample(known)}.",
            )
        if layer in seen:
            raise WatermarkError(f"the layer '{layer}' is named twice")
        seen.add(layer)
    if not seen:
        raise WatermarkError("no layer was named to carry the watermark")


def architecture(model: nn.Module) -> str:
    """A fingerprint of the names and kinds of all weighted layers; shapes do not enter.

    An obfuscated model is wider and keeps its fingerprint; another architecture has another one.
    """
    lines = [
        f"{name} {'conv' if isinstance(layer, nn.Conv2d) else 'linear'}"
        for name, layer in weighted_layers(model).items()
    ]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def layer_weight(model: nn.Module, layer: str) -> Tensor:
    """The weight of a Conv2d or Linear layer."""
    weight = model.get_submodule(layer).weight
    assert isinstance(weight, Tensor), f"{layer} has no weight"
    return weight


def _sample(names: Mapping[str, object], most: int = 6) -> str:
    listed = list(names)
    if len(listed) <= most:
        return ", ".join(listed) or "none"
    return ", ".join([*listed[:2], "…", *listed[2 - most :]])
