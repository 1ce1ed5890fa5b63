"""The module under construction: layers and tensors by path, filled with the file's numbers at the very end.

Until then every tensor is on the meta device, so that shapes can be followed through layers without computing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from canon.io.onnx.model import Node
from canon.io.onnx.names import Names, safe_name, safe_path
from canon.io.onnx.values import Constant

_BIASED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Assembly:
    """A graph and the modules that it calls."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self._root = nn.Module()
        self._names = Names()
        self._layers: dict[tuple[Any, ...], str] = {}
        self._calls: dict[str, int] = {}
        self._attributes: dict[int, str] = {}
        self._pending: dict[tuple[str, str], Tensor] = {}

    def placeholder(self, name: str) -> fx.Node:
        """A new input."""
        name = safe_name(name)
        if not name.isidentifier():
            name = f"input_{name}"
        return self.graph.placeholder(self._names.free(name))

    def attribute(self, constant: Constant) -> fx.Node:
        """A constant as an operand: a parameter if the file holds it as such, a buffer otherwise."""
        tensor = constant.tensor
        if id(tensor) not in self._attributes:
            path = self._names.free(safe_path(constant.name or "constant"))
            folder, _, name = path.rpartition(".")
            owner, meta = self._folder(folder), torch.empty_like(tensor, device="meta")
            if constant.name and tensor.is_floating_point():
                owner.register_parameter(name, nn.Parameter(meta))
            else:
                owner.register_buffer(name, meta)
            self._attributes[id(tensor)] = path
            self._pending[folder, name] = tensor
        return self.graph.get_attr(self._attributes[id(tensor)])

    def layer(
        self, node: Node, make: Callable[..., nn.Module], tensors: Mapping[str, Constant], settings: Mapping[str, Any]
    ) -> tuple[str, nn.Module]:
        """A layer with tensors of the file; asked for twice with the same ones, it is one layer."""
        owned = tuple((name, id(constant.tensor)) for name, constant in tensors.items())
        key = (make, owned, repr(sorted(settings.items())))
        if key not in self._layers:
            dtype = next(iter(tensors.values())).tensor.dtype
            module = make(**settings, device="meta", dtype=dtype).eval()
            for name, constant in tensors.items():
                expected, given = getattr(module, name), constant.tensor
                if tuple(expected.shape) != tuple(given.shape):
                    raise ValueError(f"{name} has shape {tuple(given.shape)} instead of {tuple(expected.shape)}")
            path = self._names.free(_layer_path(node, tensors))
            folder, _, last = path.rpartition(".")
            self._folder(folder).add_module(last, module)
            self._pending.update(((path, name), constant.tensor) for name, constant in tensors.items())
            self._layers[key] = path
        path = self._layers[key]
        self._calls[path] = self._calls.get(path, 0) + 1
        return path, self._root.get_submodule(path)

    def called(self, node: fx.Node) -> nn.Module | None:
        """The layer that a node calls."""
        return self._root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def add_bias(self, node: fx.Node, bias: Tensor) -> bool:
        """Give the layer that a node calls a bias, if it has none and is called nowhere else."""
        path, module = str(node.target), self.called(node)
        if not isinstance(module, _BIASED) or module.bias is not None or self._calls[path] > 1:
            return False
        if bias.shape != module.weight.shape[:1] or bias.dtype != module.weight.dtype:
            return False
        module.bias = nn.Parameter(torch.empty_like(bias, device="meta"))
        self._pending[path, "bias"] = bias
        self._layers = {key: known for key, known in self._layers.items() if known != path}
        return True

    def shapes(self) -> dict[fx.Node, torch.Size]:
        """Shapes of the constants that are operands."""
        found = {}
        for node in self.graph.nodes:
            if node.op == "get_attr":
                folder, _, name = str(node.target).rpartition(".")
                found[node] = getattr(self._root.get_submodule(folder), name).shape
        return found

    def finish(self, outputs: Sequence[fx.Node]) -> fx.GraphModule:
        """The module in evaluation mode, with the file's numbers in it."""
        self.graph.output(outputs[0] if len(outputs) == 1 else tuple(outputs))
        self.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
        shared: dict[int, nn.Parameter] = {}
        for (folder, name), tensor in self._pending.items():
            owner = self._root.get_submodule(folder)
            if name in owner._parameters:
                owner._parameters[name] = shared.setdefault(id(tensor), nn.Parameter(tensor))
            else:
                owner._buffers[name] = tensor
        for module in self._root.modules():
            if "num_batches_tracked" in module._buffers:
                module._buffers["num_batches_tracked"] = torch.tensor(0)
        return fx.GraphModule(self._root, self.graph, "OnnxModel").eval()

    def _folder(self, path: str) -> nn.Module:
        module = self._root
        for part in path.split(".") if path else ():
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module.get_submodule(part)
        return module


def _layer_path(node: Node, tensors: Mapping[str, Constant]) -> str:
    """A layer is called as its weight says (`layer1.0.conv1.weight`), else as its node is called."""
    named = next((c.name for c in tensors.values() if c.name.rpartition(".")[2] == "weight" and "." in c.name), "")
    return safe_path(named.rpartition(".")[0] or node.name or node.outputs[0] or node.op)
