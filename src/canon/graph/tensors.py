"""A model's tensors by name, and copies of a model that take other tensors in their place."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor, nn


class StoredTensors(Mapping[str, Tensor]):
    """Tensors that are read when they are asked for, and kept by nobody: for models larger than memory."""

    @abstractmethod
    def shape(self, name: str) -> torch.Size:
        """A tensor's shape, without reading it."""


def shape_of(tensors: Mapping[str, Tensor], name: str) -> torch.Size:
    """The shape of a tensor; one that is stored is not read for it."""
    return tensors.shape(name) if isinstance(tensors, StoredTensors) else tensors[name].shape


def tensor_names(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All parameters and buffers by first name, and every name's first name."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[int, str] = {}
    modules = modules_of(model)
    for held in ("_parameters", "_buffers"):
        for prefix, module in modules:
            for key, tensor in getattr(module, held).items():
                if tensor is not None:
                    name = f"{prefix}.{key}" if prefix else key
                    aliases[name] = first.setdefault(id(tensor), name)
                    tensors.setdefault(aliases[name], tensor)
    return tensors, aliases


def modules_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Every module under every name it has, as `named_modules` gives them, at a tenth of its cost."""
    found: list[tuple[str, nn.Module]] = []

    def visit(prefix: str, module: nn.Module) -> None:
        found.append((prefix, module))
        for name, child in module._modules.items():
            if child is not None:
                visit(f"{prefix}.{name}" if prefix else name, child)

    visit("", model)
    return found


def layers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Every module under its first name."""
    names: dict[nn.Module, str] = {}
    for name, module in modules_of(model):
        names.setdefault(module, name)
    return {name: module for module, name in names.items()}


PIECE: Final = 1 << 18
"""Numbers that are widened at a time: what a core's cache holds."""


def not_finite(tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Names of tensors that hold NaN or infinity.

    Both survive a sum, which is cheap; only a sum that is not finite, which may be an overflow, costs a closer look.
    """
    found = [(name, tensor.detach()) for name, tensor in tensors if tensor.is_floating_point()]
    if not found:
        return []
    device = found[0][1].device
    sums = [_sum(tensor).to(device) for _, tensor in found]
    same = sums if len({total.dtype for total in sums}) == 1 else [total.double() for total in sums]
    finite = torch.stack(same).isfinite().tolist()
    doubtful = [named for named, good in zip(found, finite, strict=True) if not good]
    return [name for name, tensor in doubtful if not bool(torch.isfinite(_widest(tensor)).all())]


def _sum(tensor: Tensor) -> Tensor:
    wide = _widest(tensor)
    if wide.dtype in (torch.float16, torch.bfloat16) and wide.device.type == "cpu" and wide.numel() > PIECE:
        return _sum_in_pieces(wide)
    return wide.sum(dtype=torch.promote_types(wide.dtype, torch.float32))


def _sum_in_pieces(tensor: Tensor) -> Tensor:
    """The sum of numbers in half precision, widened some at a time: several times as fast as torch adds them up."""
    room = torch.empty(PIECE, dtype=torch.float32)
    total = torch.zeros((), dtype=torch.float32)
    for piece in tensor.reshape(-1).split(PIECE):
        total += room[: len(piece)].copy_(piece).sum()
    return total


def _widest(tensor: Tensor) -> Tensor:
    """The tensor, or a copy in float32 of a type that torch can hold but not compute with."""
    return tensor.float() if tensor.element_size() < 2 else tensor


def unsaved_names(model: nn.Module) -> frozenset[str]:
    """Buffers that a checkpoint leaves out: rewritten, they would come back as they were."""
    return frozenset(
        f"{prefix}.{name}" if prefix else name
        for prefix, module in modules_of(model)
        for name in module._non_persistent_buffers_set
    )


def clone_with(model: nn.Module, tensors: dict[int, Tensor]) -> nn.Module:
    """A copy of a model that shares nothing but gets the given tensors in place of those with these ids.

    As `copy.deepcopy`, which asks its memo first, so that no weight is ever copied; but what makes up nearly all of a
    model, plain modules that hold tensors, numbers and other modules, is copied without the detours.
    """
    return _copy_module(model, dict(tensors))


def shared(model: nn.Module) -> dict[int, Tensor]:
    """For `clone_with`: a clone that has its model's own tensors."""
    return {id(tensor): tensor for tensor in tensor_names(model)[0].values()}


ATOMS = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size, type})
"""What a copy may share."""

CONTAINERS = frozenset({dict, list, set, OrderedDict})
"""What is nothing but what it holds."""

_SPECIAL = frozenset(
    {"__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__slots__", "__getnewargs__",
     "__getnewargs_ex__", "__new__"}
)  # fmt: skip
"""What a class defines that wants to be copied in its own way."""


def _copy_module(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    known = memo.get(id(module))
    if known is not None:
        result: nn.Module = known
        return result
    kind: Any = type(module)
    if not is_plain(kind):
        for child in module._modules.values():
            if child is not None:
                _copy_module(child, memo)  # a program copies itself in its own way, and asks the memo for its layers
        result = copy.deepcopy(module, memo)
        return result
    result = kind.__new__(kind)
    memo[id(module)] = result
    result.__dict__.update(_copied(module.__dict__, memo))
    return result


@lru_cache(maxsize=1024)
def is_plain(kind: type) -> bool:
    """Whether instances are nothing but their attributes, so that copying those copies them.

    What layers of torch.nn do to a state is for files of older versions.
    """
    bases = [base for base in kind.__mro__ if base not in (object, nn.Module)]
    own = {name for base in bases for name in vars(base)}
    restored = any("__setstate__" in vars(base) and not base.__module__.startswith("torch.nn.") for base in bases)
    return not restored and not own & _SPECIAL


def _copied(items: dict[Any, Any], memo: dict[int, Any]) -> dict[Any, Any]:
    made = {}
    for name, value in items.items():
        kind = type(value)
        if kind in ATOMS:
            made[name] = value
        elif kind in CONTAINERS and not value:
            made[name] = memo.setdefault(id(value), kind())  # a module has a dozen
        else:
            made[name] = _copy(value, memo)
    return made


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    kind = type(value)
    known = memo.get(id(value))
    if known is not None:
        return known
    if isinstance(value, nn.Module):
        return _copy_module(value, memo)
    if kind is dict:
        # Keys are names; values may be anything.
        memo[id(value)] = made = {}
        made.update(_copied(value, memo))
        return made
    if kind is tuple and all(type(item) in ATOMS for item in value):
        return value
    return copy.deepcopy(value, memo)


def meta_clone(model: nn.Module) -> nn.Module:
    """The model with every tensor on the meta device."""
    replaced: dict[int, Tensor] = {}
    for tensor in tensor_names(model)[0].values():
        meta = torch.empty_like(tensor, device="meta")
        if isinstance(tensor, nn.Parameter):
            meta = nn.Parameter(meta, requires_grad=False)
        replaced[id(tensor)] = meta
    return clone_with(model, replaced)
