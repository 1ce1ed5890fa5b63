"""What a comparison covers: every parameter and buffer that the forward pass uses, or the reason why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from canon.errors import TraceError, reason_of
from canon.graph.experts import named_apart
from canon.graph.inputs import map_tensors
from canon.graph.recorded import traced_alike
from canon.graph.tensors import meta_clone, tensor_names


@dataclass(frozen=True)
class Uncompared:
    """A tensor of the owner's that nothing was held against."""

    what: str
    numbers: int
    why: str


@dataclass(frozen=True)
class Coverage:
    """How much of a model was compared."""

    numbers: int
    """Numbers of the owner's model that the forward pass uses."""

    uncompared: tuple[Uncompared, ...] = ()
    """Those that were not compared, most numbers first."""

    @property
    def share(self) -> float:
        """Share of the numbers that were compared."""
        missing = sum(item.numbers for item in self.uncompared)  # as many as a key says
        return max(0.0, 1 - missing / self.numbers) if self.numbers else 0.0

    @property
    def complete(self) -> bool:
        """Whether every number was compared."""
        return self.numbers > 0 and not self.uncompared

    @staticmethod
    def of(tensors: Mapping[str, Tensor], uncompared: Iterable[Uncompared] = ()) -> Coverage:
        """Of these tensors, all but some."""
        items = sorted(uncompared, key=lambda item: -item.numbers)
        return Coverage(sum(tensor.numel() for tensor in tensors.values()), tuple(items))


NOTHING: Final = Coverage(0)
"""Nothing was compared."""


def used_tensors(model: nn.Module, example: Tensor | tuple[Any, ...]) -> tuple[str, ...]:
    """The parameters and buffers that the forward pass uses, by first name, in the order of their first use.

    The model is run on a device that holds no numbers; where it looks at numbers, it is run as it is. Whatever an
    operation is given counts as used.

    >>> used_tensors(nn.BatchNorm1d(4).eval(), torch.zeros(2, 4))
    ('weight', 'bias', 'running_mean', 'running_var')
    """
    inputs = example if isinstance(example, tuple) else (example,)
    try:
        with traced_alike():
            found = _run(meta_clone(model), tuple(map_tensors(lambda x: x.to("meta"), x) for x in inputs))
    except Exception:  # the model's own code may raise anything
        found = _run_for_real(model, inputs)
    return named_apart(found, model)


def _run_for_real(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[str, ...]:
    try:
        return _run(model, inputs)
    except Exception as error:  # the model's own code may raise anything
        raise TraceError(f"the model does not run on its example: {reason_of(error)}") from error


def _run(model: nn.Module, inputs: tuple[Any, ...]) -> tuple[str, ...]:
    tensors, _ = tensor_names(model)
    watch = _Watch({id(tensor): name for name, tensor in tensors.items()})
    with torch.no_grad(), watch:
        model(*inputs)
    return tuple(watch.seen)


class _Watch(TorchDispatchMode):
    """Notes which of some tensors operations are given."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = names
        self.seen: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in tree_leaves((args, kwargs or {})):
            if isinstance(leaf, Tensor) and id(leaf) in self.names:
                self.seen[self.names[id(leaf)]] = None
        return func(*args, **(kwargs or {}))
