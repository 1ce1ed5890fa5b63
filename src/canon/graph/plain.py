"""A model without what is wrapped around it: shells of other programs, and weights that are made before each call."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize, prune
from torch.nn.utils.spectral_norm import SpectralNorm, remove_spectral_norm
from torch.nn.utils.weight_norm import WeightNorm, remove_weight_norm

from canon.errors import TraceError
from canon.graph.scripted import program_of_script
from canon.graph.tensors import modules_of

SHELLS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def plain(model: nn.Module) -> nn.Module:
    """The model itself, or one with the same function in which every weight is a tensor of its own.

    A compiled or distributed model is what it was made from. Parametrizations, norms of weights and pruning masks are
    carried out, on a copy.
    """
    if isinstance(model, torch.jit.ScriptModule):
        return program_of_script(model)
    for name, module in modules_of(model) if isinstance(model, nn.Module) else ():
        if isinstance(module, torch.jit.ScriptModule):
            raise TraceError(
                "TorchScript modules have no Python forward pass",
                where=name or None,
                hint="Pass the module that it was made from. Of a file, canon.load(path, architecture) reads the "
                "weights; torch.onnx.export makes a file that has the forward pass as well",
            )
    while isinstance(model, SHELLS) or isinstance(getattr(model, "_orig_mod", None), nn.Module):
        model = model.module if isinstance(model, SHELLS) else model._orig_mod  # type: ignore[assignment]
    if isinstance(model, fx.GraphModule) and "eval" in vars(model):
        model = _unguarded(model)
    if not isinstance(model, nn.Module) or not any(_made(module) for module in model.modules()):
        return model
    computed = {
        id(value): value.detach().clone()
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    found = copy.deepcopy(model, computed)
    for module in found.modules():
        for carry_out in _made(module):
            carry_out()
    return found


def _made(module: nn.Module) -> list[Callable[[], Any]]:
    """What turns each weight that is made before a call into a tensor."""
    return list(_parametrized(module)) + list(_hooked(module))


def _parametrized(module: Any) -> Iterator[Callable[[], Any]]:
    if parametrize.is_parametrized(module):
        yield partial(_settle, module)


def _settle(module: Any) -> None:
    """Torch would take the parametrizations from the class, and the class is the original's too."""
    values = {name: getattr(module, name).detach().clone() for name in module.parametrizations}
    module.__class__ = module.__class__.__bases__[0]
    del module.parametrizations
    for name, value in values.items():
        module.register_parameter(name, nn.Parameter(value))


def _hooked(module: nn.Module) -> Iterator[Callable[[], Any]]:
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            yield partial(remove_weight_norm, module, hook.name)
        elif isinstance(hook, SpectralNorm):
            yield partial(remove_spectral_norm, module, hook.name)
        elif isinstance(hook, prune.BasePruningMethod):
            yield partial(prune.remove, module, hook._tensor_name)


def _unguarded(exported: fx.GraphModule) -> fx.GraphModule:
    """What torch.export made, as an ordinary module: without checks of its inputs, and with a mode that can be told."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(exported.graph, {}))
    for node in list(graph.nodes):
        if node.op == "call_module" and not node.users:
            graph.erase_node(node)
    graph.set_codegen(exported.graph._codegen)
    return fx.GraphModule(exported, graph).eval()
