"""Blocks that repeat are run once: what one wrote down is written down again for the next, with its own tensors.

That is right where the next block is built and called alike. What differs nevertheless, such as the number of a layer,
is taken away from the block that is run: if its forward pass asks for it, all is done again with every block of that
kind run. All that lies between blocks is run as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from canon.graph.alike import Differences
from canon.graph.names import writes_in_place
from canon.graph.tensors import ATOMS, modules_of, tensor_names

if TYPE_CHECKING:
    from canon.graph.recorded import Recorder

FEWEST: Final = 3
"""Blocks of one kind from which on it pays to run one for all."""


class NumberAsked(Exception):
    """A block asked for a number that is not the same in blocks that are otherwise alike, or fails in any case."""

    def __init__(self, path: str = "") -> None:
        super().__init__(path)
        self.path = path


class Withheld:
    """Stands for a number that may be handed on and not looked at."""

    def _asked(self, *_: Any, **__: Any) -> Any:
        raise NumberAsked

    __class__ = property(_asked)
    __getattr__ = __bool__ = __index__ = __int__ = __float__ = __str__ = __repr__ = __format__ = _asked
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _asked
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = __pow__ = __rpow__ = __mod__ = _asked
    __rmod__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __len__ = __iter__ = __call__ = _asked


@dataclass(eq=False)
class Kind:
    """Blocks that are built alike."""

    model: nn.Module
    """The first of them."""

    path: str
    differing: list[tuple[dict[str, Any], str, Any]] = field(default_factory=list)
    """Places of numbers of the first that are others in some block."""

    template: Template | None = None
    hopeless: bool = False
    members: int = 1


@dataclass(frozen=True, eq=False)
class Template:
    """What the first block of a kind wrote down."""

    nodes: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    """What makes the tensors that it was given."""

    signature: object
    leaves: tuple[Any, ...]
    """What it returned: nodes, and other things."""

    form: Any
    tensors: dict[fx.Node, str]
    """By node: a tensor of the block, by its name there."""


class Repeats:
    """The blocks of one model."""

    def __init__(self, model: nn.Module, recorder: Recorder, asking: Container[str]) -> None:
        self.recorder, self.count = recorder, 0
        self._kinds: dict[str, tuple[Kind, nn.Module]] = {}
        for path, module in modules_of(model):
            if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) >= FEWEST:
                self._sort(path, module, asking)

    def _sort(self, path: str, blocks: Any, asking: Container[str]) -> None:
        kinds: list[Kind] = []
        for number, block in enumerate(blocks):
            place = f"{path}.{number}" if path else str(number)
            for kind in kinds:
                found = Differences()
                if found.modules(kind.model, block):
                    kind.members += 1
                    kind.differing += found.numbers
                    self._kinds[place] = (kind, block)
                    break
            else:
                kinds.append(Kind(block, place, hopeless=place in asking))
                self._kinds[place] = (kinds[-1], block)

    def call(self, path: str, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What a block makes of its inputs."""
        kind, block = self._kinds.get(path, (None, None))
        if kind is None or block is None or kind.hopeless or kind.members < FEWEST:
            return run(*args, **kwargs)
        leaves, form = tree_flatten((args, kwargs))
        signature = _signature(leaves, form)
        if signature is None:
            return run(*args, **kwargs)
        if kind.template is None:
            return (
                self._first(kind, run, leaves, signature, args, kwargs) if path == kind.path else run(*args, **kwargs)
            )
        if kind.template.signature != signature:
            return run(*args, **kwargs)
        return self._again(kind, kind.template, path, block, [x for x in leaves if isinstance(x, Tensor)])

    def _first(self, kind: Kind, run: Any, leaves: list[Any], signature: object, args: Any, kwargs: Any) -> Any:
        """Run a block without the numbers in which others differ."""
        recorder = self.recorder
        inputs = tuple(recorder.node(x) for x in leaves if isinstance(x, Tensor))
        before = len(recorder.graph.nodes)
        for place, name, _ in kind.differing:
            place[name] = Withheld()
        try:
            result = run(*args, **kwargs)
        except Exception as error:
            raise NumberAsked(kind.path) from error
        finally:
            for place, name, number in kind.differing:
                place[name] = number
        kind.template = self._template(kind, before, inputs, signature, result)
        kind.hopeless = kind.template is None
        return result

    def _template(
        self, kind: Kind, before: int, inputs: tuple[fx.Node, ...], signature: object, result: Any
    ) -> Template | None:
        recorder = self.recorder
        nodes = tuple(list(recorder.graph.nodes)[before:])
        own = {recorder.node(t): name for name, t in tensor_names(kind.model)[0].items()}
        inside, known = set(nodes), {*inputs, *own}
        for node in nodes:
            written = node.args[0] if node.args and writes_in_place(node, None) else None
            if written is not None and written not in inside:
                return None
            if any(n not in inside and n not in known for n in node.all_input_nodes):
                return None  # it reads what it was not given
        leaves, form = tree_flatten(result)
        if not all(isinstance(leaf, Tensor) or type(leaf) in ATOMS for leaf in leaves):
            return None
        made = tuple(recorder.node(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        return Template(nodes, inputs, signature, made, form, own)

    def _again(self, kind: Kind, template: Template, path: str, block: nn.Module, inputs: list[Tensor]) -> Any:
        recorder = self.recorder
        self.count += 1
        tensors = tensor_names(block)[0]
        new: dict[fx.Node, fx.Node] = {node: recorder.node(tensors[name]) for node, name in template.tensors.items()}
        new.update({old: recorder.node(x) for old, x in zip(template.inputs, inputs, strict=True)})
        for node in template.nodes:
            if node.op == "placeholder":  # a constant of its own
                new[node] = recorder.constant(node.meta["val"])
                continue
            args, kwargs = fx.map_arg((node.args, node.kwargs), new.__getitem__)
            inner = next(iter(node.meta["nn_module_stack"]))
            at = path + inner[len(kind.path) :] if inner.startswith(kind.path) else inner
            new[node] = recorder.write(node.target, args, kwargs, node.meta["val"], at)
        given = dict(zip(template.inputs, inputs, strict=True))

        def made(node: fx.Node) -> Tensor:
            if node in given:
                return given[node]
            tensor = recorder.unseen(lambda: torch.empty_like(node.meta["val"]))
            recorder.track(tensor, new[node])
            return tensor

        known = {leaf: made(leaf) for leaf in template.leaves if isinstance(leaf, fx.Node)}
        return tree_unflatten(
            [known.get(x, x) if isinstance(x, fx.Node) else x for x in template.leaves], template.form
        )


def _signature(leaves: list[Any], form: Any) -> object | None:
    """How a block is called, but for the numbers in tensors; None: with something that may be anything."""
    order: dict[int, int] = {}
    found: list[Any] = [form]
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            found.append((order.setdefault(id(leaf), len(order)), leaf.shape, leaf.stride(), leaf.dtype, leaf.device))
        elif type(leaf) in ATOMS:
            found.append((type(leaf), leaf))
        else:
            return None
    return found


__all__ = ["FEWEST", "NumberAsked", "Repeats"]
