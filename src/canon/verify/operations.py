"""What a forward pass asks torch for: operations in order, with the tensors they are given and all other settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from canon.errors import TraceError, reason_of
from canon.graph.inputs import map_tensors, tensors_in
from canon.graph.recorded import traced_alike
from canon.graph.tensors import meta_clone, tensor_names

IDLE: Final = frozenset({"alias", "clone", "detach", "lift_fresh", "_to_copy"})
"""Operations that change no number, float types aside."""

WHERE: Final = frozenset({"dtype", "device", "layout", "memory_format", "pin_memory", "non_blocking", "generator"})
"""What operations are told of types and places, which are compared elsewhere."""


@dataclass(frozen=True)
class Operation:
    """One call of a function of torch."""

    name: str
    tensors: tuple[str, ...]
    """The model's tensors among its operands."""

    shapes: tuple[tuple[int, ...], ...]
    """Of all operands."""

    settings: Mapping[str, Any]
    """What else it is given, by name, defaults too."""

    constants: tuple[Tensor, ...] = ()
    """Operands that are neither the model's tensors nor inputs nor computed: the code holds them."""


def operations_of(model: nn.Module, example: Tensor | tuple[Any, ...]) -> tuple[Operation, ...]:
    """The operations of a forward pass.

    The model is run on a device that holds no numbers; where it looks at numbers, it is run as it is.
    """
    inputs = example if isinstance(example, tuple) else (example,)
    try:
        with traced_alike():
            return _run(meta_clone(model), tuple(map_tensors(lambda x: x.to("meta"), x) for x in inputs))
    except Exception as error:  # the model's own code may raise anything
        if any(tensor.is_meta for tensor in tensor_names(model)[0].values()):  # a key's program is a stranger's data
            raise TraceError(f"the program does not run without numbers: {reason_of(error)}") from error
        return _run_for_real(model, inputs)


def _run_for_real(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Operation, ...]:
    try:
        return _run(model, inputs)
    except Exception as error:  # the model's own code may raise anything
        raise TraceError(f"the model does not run on its example: {reason_of(error)}") from error


def _run(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[Operation, ...]:
    tensors, _ = tensor_names(model)
    watch = _Watch({id(tensor): name for name, tensor in tensors.items()}, inputs)
    with torch.no_grad(), watch:
        model(*inputs)
    return tuple(watch.seen)


class _Watch(TorchDispatchMode):
    """Notes what torch is asked for."""

    def __init__(self, names: Mapping[int, str], inputs: tuple[Any, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = names
        self.made: Any = WeakIdKeyDictionary(dict.fromkeys(tensors_in(inputs)))
        self.seen: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        known = func._schema.arguments
        named = {
            argument.name: args[place] if place < len(args) else given.get(argument.name, argument.default_value)
            for place, argument in enumerate(known)
        }
        held = [leaf for leaf in tree_leaves((args, given)) if isinstance(leaf, Tensor)]
        self.seen.append(
            Operation(
                func._schema.name.removeprefix("aten::").rstrip("_"),
                tuple(self.names[id(tensor)] for tensor in held if id(tensor) in self.names),
                tuple(tuple(tensor.shape) for tensor in held),
                {name: value for name, value in named.items() if name not in WHERE and _plain(value)},
                tuple(x.detach() for x in held if id(x) not in self.names and x not in self.made),
            )
        )
        found = func(*args, **given)
        self.made.update({leaf: None for leaf in tree_leaves(found) if isinstance(leaf, Tensor)})
        return found


def _plain(value: Any) -> bool:
    return all(isinstance(leaf, bool | int | float | str | type(None)) for leaf in tree_leaves(value))
