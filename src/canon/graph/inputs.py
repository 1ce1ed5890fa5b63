"""What a caller gives as an example, as the arguments of one forward pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from canon.errors import ExampleError
from canon.graph.tensors import meta_clone

Example = Tensor | tuple[Any, ...] | Mapping[str, Any]
"""An input tensor, a tuple of the forward pass's arguments, or a dict of them by name."""

_FEW: Final = 16
"""An example that shows fewer different ids than this says little about which are valid."""


def arguments(model: nn.Module, example: Example) -> Tensor | tuple[Any, ...]:
    """The arguments of a forward pass by position: a dict is put in the order of the model's own signature.

    Ids that look rows of an embedding up are spread over all its rows where the example, such as zeros, shows but a
    few: probes are drawn between the smallest and the largest. What has its form already is returned as it is.

    >>> class Pair(nn.Module):
    ...     def forward(self, first, second=None, third=1):
    ...         return first
    >>> arguments(Pair(), {"third": 3, "first": torch.zeros(2)})
    (tensor([0., 0.]), None, 3)

    Raises:
        ExampleError: The forward pass takes no argument of that name, or only by keyword.
    """
    given = _by_position(model, example) if isinstance(example, Mapping) else example
    listed = given if isinstance(given, tuple) else (given,)
    if not isinstance(model, nn.Module) or not any(_is_whole(x) and _range(x) < _FEW for x in listed):
        return given
    rows = id_ranges(model, listed)
    spread = tuple(_spread(x, rows[index]) if index in rows else x for index, x in enumerate(listed))
    return spread if isinstance(given, tuple) else spread[0]


def map_tensors(change: Callable[[Tensor], Any], value: Any) -> Any:
    """The same structure of tuples, lists and dicts with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, list) or type(value) is tuple:
        return type(value)(map_tensors(change, item) for item in value)
    return {name: map_tensors(change, item) for name, item in value.items()} if type(value) is dict else value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of an input or output, in the order in which they stand."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(item)


def fitting(example: Any, model: nn.Module) -> Any:
    """An example in the precision that a model computes in: suspect and owner may differ in it."""
    kind = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    return example if kind is None else map_tensors(lambda x: x.to(kind) if x.is_floating_point() else x, example)


def id_ranges(model: nn.Module, inputs: tuple[Any, ...]) -> dict[int, int]:
    """By position of an input that holds ids: how many rows there are to look up. No forward pass is run on numbers."""
    given = [map_tensors(lambda x: x.to("meta"), x) for x in inputs]
    watch = _Lookups({_storage(x): index for index, x in enumerate(given) if isinstance(x, Tensor)})
    try:
        clone = meta_clone(model)
        with torch.no_grad(), watch:
            clone(*given)
    except Exception:
        pass  # it looks at numbers, or does not fit: embeddings mostly come first, and tracing says what is wrong
    return watch.rows


def _by_position(model: nn.Module, example: Mapping[str, Any]) -> tuple[Any, ...]:
    name = type(model).__name__
    parameters = dict(inspect.signature(model.forward).parameters)
    order = [key for key, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for key in example:
        if key not in order:
            only = key in parameters and parameters[key].kind is inspect.Parameter.KEYWORD_ONLY
            raise ExampleError(
                f"the forward pass takes '{key!s:.80}' only by keyword" if only else f"there is no input '{key!s:.80}'",
                where=name,
                hint="Pass a module that takes it by position" if only else f"It takes {', '.join(order)}",
            )
    if not example:
        raise ExampleError("the example holds no input", where=name, hint=f"The model takes {', '.join(order)}")
    needed = order[: 1 + max(order.index(key) for key in example)]
    missing = [key for key in needed if key not in example and parameters[key].default is inspect.Parameter.empty]
    if missing:
        raise ExampleError(f"the model also needs an input '{missing[0]}'", where=name)
    return tuple(example[key] if key in example else parameters[key].default for key in needed)


def _is_whole(x: Any) -> bool:
    kinds = (torch.int64, torch.int32)
    return isinstance(x, Tensor) and x.dtype in kinds and x.numel() > 1 and not x.is_meta


def _range(x: Tensor) -> int:
    return int(x.max()) - int(x.min()) + 1


def _spread(x: Any, rows: int) -> Any:
    if not _is_whole(x) or _range(x) >= min(_FEW, rows):
        return x
    steps = torch.linspace(0, rows - 1, x.numel(), dtype=torch.float64).round()
    # Neighbours far apart, and no two samples alike: a fixed shuffle.
    order = torch.randperm(x.numel(), generator=torch.Generator().manual_seed(0))
    return steps[order].view(x.shape).to(x.device, x.dtype)


def _storage(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)


class _Lookups(TorchDispatchMode):
    """Notes which inputs are used as row numbers, and of how many rows."""

    def __init__(self, inputs: dict[int, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.inputs = inputs
        self.rows: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aten = torch.ops.aten
        if func is aten.embedding.default:
            self.note(args[0], args[1])
        elif func is aten.index_select.default and args[1] == 0:
            self.note(args[0], args[2])
        elif func is aten.index.Tensor and args[1][0] is not None:
            self.note(args[0], args[1][0])
        return func(*args, **(kwargs or {}))

    def note(self, table: Any, ids: Any) -> None:
        index = self.inputs.get(_storage(ids)) if isinstance(ids, Tensor) else None
        if index is not None and isinstance(table, nn.Parameter):
            self.rows[index] = min(int(table.shape[0]), self.rows.get(index, 1 << 62))


__all__ = ["Example", "arguments", "fitting", "id_ranges", "map_tensors", "tensors_in"]
