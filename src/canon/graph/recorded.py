"""The second front end: a forward pass run once without numbers, with every operation written down.

The model's own Python runs on the meta device, so control flow over shapes is no obstacle. Operations are seen before
torch takes them apart (`linear`, not a transposition and a product), as torch.export sees them, at a tenth of its cost.
Blocks that repeat are run once (`repeats`). Sizes are numbers in what was written down, as in an exported program.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.schema_check_mode import SchemaCheckMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

from canon._quiet import quiet
from canon.errors import TraceError, reason_of
from canon.graph.frontend import MOST_RUN, FrontendError, check_steps
from canon.graph.inputs import map_tensors
from canon.graph.repeats import NumberAsked, Repeats
from canon.graph.tensors import meta_clone, modules_of, tensor_names


@dataclass(frozen=True, eq=False)
class Program:
    """A forward pass without control flow."""

    graph: fx.Graph
    names: dict[str, str] = field(default_factory=dict)
    """By placeholder: the tensor of the model that it stands for."""

    repeated: int = 0
    """Calls of blocks that were instantiated instead of being run."""


def record(model: nn.Module, example: tuple[Any, ...], *, repeats: bool = True) -> Program:
    """The operations of one forward pass.

    Args:
        model: A module in evaluation mode. It is not changed.
        example: The arguments of the forward pass.
        repeats: Run blocks that are built alike once.

    Raises:
        FrontendError: The forward pass looks at numbers, or does not fit the example.
    """
    try:
        return _record_telling(model, example, repeats, compiled=True)
    except FrontendError:
        with suppress(FrontendError):  # some make masks that they are not given only where they are not compiled
            return _record_telling(model, example, repeats, compiled=False)
        raise


def _record_telling(model: nn.Module, example: tuple[Any, ...], repeats: bool, *, compiled: bool) -> Program:
    asking: set[str] = set()
    while True:
        try:
            with torch.no_grad(), quiet(), traced_alike(compiled=compiled):
                return _record(model, example, asking if repeats else _All())
        except NumberAsked as asked:
            asking.add(asked.path)
        except TraceError:
            raise
        except Exception as error:  # the model's own code may raise anything
            raise FrontendError(f"{type(error).__name__}: {reason_of(error)}") from error


def _record(model: nn.Module, example: tuple[Any, ...], asking: Container[str]) -> Program:
    clone = meta_clone(model)
    recorder = Recorder(clone, asking)
    result = recorder.run(clone, [map_tensors(lambda x: x.to("meta"), x) for x in example])
    recorder.graph.output(tree_map_only(Tensor, recorder.node, tree_flatten(result)[0]))
    return Program(recorder.graph, recorder.names, recorder.repeats.count)


class _All:
    def __contains__(self, path: object) -> bool:
        return True


@contextmanager
def traced_alike(*, compiled: bool = True) -> Iterator[None]:
    """Models that look at numbers where they can are told that there are none, as torch.export tells them."""
    compiler: Any = torch.compiler
    before = compiler._is_compiling_flag, compiler._is_exporting_flag
    compiler._is_compiling_flag, compiler._is_exporting_flag = compiled, True
    try:
        yield
    finally:
        compiler._is_compiling_flag, compiler._is_exporting_flag = before


class Recorder:
    """Writes a graph while a model runs."""

    def __init__(self, model: nn.Module, asking: Container[str]) -> None:
        self.graph = fx.Graph()
        self.names: dict[str, str] = {}
        self.path: list[str] = [""]
        self.listening = True
        self.count = 0
        self._nodes: dict[int, fx.Node] = {}
        self._made: dict[object, fx.Node] = {}  # torch gives what is made from no tensor on as another object
        self._kept: list[Tensor] = []  # an id is a name only as long as its tensor lives
        self.repeats = Repeats(model, self, asking)
        for name, tensor in tensor_names(model)[0].items():
            node = self.placeholder("p_" + name.replace(".", "_"), tensor)
            self.names[node.name] = name

    def run(self, model: nn.Module, inputs: list[Any]) -> Any:
        """Run the model, which is changed: its layers say when they are called."""
        for path, module in reversed(modules_of(model)):  # of several names the first stays
            module.__dict__["forward"] = self._told(path, module, type(module).forward)
        for index, tensor in enumerate(x for x in tree_flatten(inputs)[0] if isinstance(x, Tensor)):
            self.placeholder(f"input_{index}", tensor)
        with torch.device("meta"), enable_python_dispatcher(), _Watch(self):
            return model(*inputs)

    def _told(self, path: str, module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def told(*args: Any, **kwargs: Any) -> Any:
            self.path.append(path)
            try:
                return self.repeats.call(path, functools.partial(forward, module), args, kwargs)
            finally:
                self.path.pop()

        return told

    def placeholder(self, name: str, tensor: Tensor) -> fx.Node:
        """A tensor that no operation makes."""
        node = self.constant(tensor if tensor.is_meta else self.unseen(lambda: tensor.detach().to("meta")), name)
        return self.track(tensor, node)

    def constant(self, shown: Tensor, name: str = "constant") -> fx.Node:
        """Something that no operation makes, known by its shape."""
        node = self.graph.placeholder(name)
        node.meta["val"] = shown
        return node

    def unseen(self, make: Callable[[], Tensor]) -> Tensor:
        """A tensor whose making is no part of the forward pass."""
        self.listening = False
        try:
            return make()
        finally:
            self.listening = True

    def track(self, tensor: Tensor, node: fx.Node) -> fx.Node:
        """From now on a tensor is what a node makes."""
        self._nodes[id(tensor)] = node
        self._kept.append(tensor)
        return node

    def node(self, tensor: Tensor) -> fx.Node:
        """What makes a tensor; one that comes from nowhere is a constant."""
        known = self._nodes.get(id(tensor)) or self._made.get(_storage(tensor))
        return self.placeholder("constant", tensor) if known is None else known

    def write(self, function: Any, args: Any, kwargs: Any, out: Any, path: str) -> fx.Node:
        """Write an operation down; its operands are nodes."""
        name = getattr(getattr(function, "overloadpacket", function), "__name__", None)
        node = self.graph.create_node("call_function", function, args, kwargs, name)
        node.meta["val"] = out
        node.meta["nn_module_stack"] = {path: (path, None)}
        return node

    def note(self, function: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An operation was run."""
        self.count += 1
        check_steps(self.count, MOST_RUN)
        args, kwargs = tree_map_only(Tensor, self.node, (args, kwargs))
        shown = tree_map_only(Tensor, lambda x: x.detach() if x.is_meta else x.detach().to("meta"), out)
        node = self.write(function, args, kwargs, shown, self.path[-1])
        if isinstance(out, Tensor):
            self.track(out, node)
            if not node.all_input_nodes:
                self._made[_storage(out)] = node
        elif isinstance(out, (list, tuple)):
            for index, item in enumerate(out):
                if isinstance(item, Tensor):
                    self.track(item, self.write(_item, (node, index), {}, shown[index], self.path[-1]))


_item = operator.getitem


def _storage(tensor: Tensor) -> object:
    """What two tensors have in common that are views of the same memory, and the same view."""
    return tensor.untyped_storage()._cdata, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()


class _Watch(SchemaCheckMode):
    """Sees operations before they are taken apart.

    torch lets three kinds of modes do so. This is the plainest, and nothing of it is used.
    """

    def __init__(self, recorder: Recorder) -> None:
        TorchDispatchMode.__init__(self, torch._C.DispatchKey.PreDispatch)
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self._recorder.listening:
            self._recorder.note(func, args, kwargs or {}, out)
        return out
