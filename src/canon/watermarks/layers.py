"""Which layers of a model can carry a mark.

Defaults must make sense on any network, so they are counted from the end of the model in module order and never by
name. A model with more linear layers than convolutions, such as a transformer, is marked in those.
"""

from __future__ import annotations

import hashlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from canon.errors import WatermarkError


def transposed(module: nn.Module) -> bool:
    """Whether this is the Conv1D of transformers: a linear layer whose weight has inputs as rows."""
    package = sys.modules.get("transformers.pytorch_utils")
    return package is not None and isinstance(module, package.Conv1D)


def is_linear(module: nn.Module) -> bool:
    """Whether this is a linear layer, however its weight lies; its channels are the last axis."""
    return isinstance(module, nn.Linear) or transposed(module)


def weighted_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Every Conv2d and linear layer by name, in module order."""
    return {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d) or is_linear(module)
    }


def undivided_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Every linear layer and every convolution without groups, in module order."""
    return {
        name: layer
        for name, layer in weighted_layers(model).items()
        if not isinstance(layer, nn.Conv2d) or layer.groups == 1
    }


def undivided_convolutions(model: nn.Module) -> dict[str, nn.Conv2d]:
    """Every convolution without groups, in module order.

    A depthwise kernel has one input channel, which is too few to hide anything in.
    """
    return {
        name: module for name, module in model.named_modules() if isinstance(module, nn.Conv2d) and module.groups == 1
    }


def made_of_linear(model: nn.Module) -> bool:
    """Whether a model has more linear layers than undivided convolutions."""
    return 2 * len(undivided_convolutions(model)) < len(undivided_layers(model))


def last_layers(model: nn.Module, images: Tensor, count: int) -> tuple[str, ...]:
    """The last `count` undivided convolutions, or inner linear layers of a model that is made of these."""
    names = tuple(inner_linear(model, images)) if made_of_linear(model) else tuple(undivided_convolutions(model))
    if not names:
        raise WatermarkError(
            "the model has no undivided convolution and no inner linear layer to carry a watermark",
            hint="Name the layers to use.",
        )
    return names[-count:]


def inner_linear(model: nn.Module, images: Tensor) -> dict[str, nn.Module]:
    """Linear layers whose output is not the model's, and whose weight no other module has, in module order.

    A head that is tied to an embedding is neither.
    """
    made: list[tuple[str, Tensor]] = []
    linear = {name: layer for name, layer in weighted_layers(model).items() if is_linear(layer)}

    def watch(name: str, layer: nn.Module) -> RemovableHandle:
        return layer.register_forward_hook(lambda _module, _inputs, output: made.append((name, output)))

    with run_once(model, images, [watch(name, layer) for name, layer in linear.items()]) as result:
        given = set(_memory(result))
    last = {name for name, output in made if set(_memory(output)) & given}
    tied = tied_layers(model)
    return {name: layer for name, layer in linear.items() if name not in last | tied}


def tied_layers(model: nn.Module) -> set[str]:
    """Layers whose weight another module has too, as a head may have an embedding's."""
    uses = Counter(id(value) for module in model.modules() for value in module._parameters.values())
    layers = weighted_layers(model).items()
    return {name for name, layer in layers if uses[id(layer._parameters.get("weight"))] > 1}


def _memory(value: object) -> Iterator[int]:
    """Where the tensors in what a module returned lie."""
    if isinstance(value, Tensor):
        yield value.untyped_storage().data_ptr()
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _memory(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _memory(entry)


@contextmanager
def run_once(model: nn.Module, images: Tensor, handles: Iterable[RemovableHandle]) -> Iterator[object]:
    """What the model returns in evaluation mode; the hooks are gone and its mode is restored afterwards."""
    training = model.training
    try:
        model.eval()
        with torch.no_grad():
            result: object = model(images)
    finally:
        model.train(training)
        for handle in handles:
            handle.remove()
    yield result


def check_layers(model: nn.Module, layers: Iterable[str]) -> None:
    """Raise unless every name is a Conv2d or linear layer of this model, named once."""
    known = weighted_layers(model)
    seen: set[str] = set()
    for layer in layers:
        if layer not in known:
            raise WatermarkError(
                f"the model has no Conv2d or Linear layer '{layer}'",
                hint=f"Its layers are: {sample(known)}.",
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
    """The weight of a layer or norm, outputs first: writing to it writes to the model."""
    module = model.get_submodule(layer)
    weight = module.weight
    assert isinstance(weight, Tensor), f"{layer} has no weight"
    return weight.t() if transposed(module) else weight


def sample(names: Mapping[str, object], most: int = 6) -> str:
    """Some of the names, for a message."""
    listed = list(names)
    if len(listed) <= most:
        return ", ".join(listed) or "none"
    return ", ".join([*listed[:2], "…", *listed[2 - most :]])
