"""Whether two models are built alike, so that one trace serves both.

torch.fx walks a clone whose tensors hold no numbers: it sees classes, attributes, and the shapes of parameters and
buffers. Models that agree in all of these have one channel graph. Whatever is not known to agree does not.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import Any, Final

from torch import Tensor, nn

from canon.graph.modules import hooked
from canon.graph.tensors import ATOMS, is_plain

_SETS: Final = (set, frozenset)
_LISTS: Final = (list, tuple)
_DICTS: Final = (dict, OrderedDict)
_TENSORS: Final = ("_parameters", "_buffers")
_PACKAGES: Final = ("transformers", "diffusers", "timm")
"""Packages whose plain objects, configs above all, are what their attributes say."""

_ASIDE: Final = frozenset(
    {"_canon_folder", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_state_dict_hooks",
     "_state_dict_pre_hooks"}
)  # fmt: skip
"""Attributes of a module that its forward pass has nothing to do with."""


def built_alike(first: nn.Module, second: nn.Module) -> bool:
    """Whether two models differ in nothing but the numbers in their parameters and buffers."""
    return _Comparison().modules(first, second)


class _Comparison:
    """One walk through both models; what stands for what must be one to one, as sharing is part of a model."""

    def __init__(self) -> None:
        self.partner: dict[int, int] = {}
        self.taken: set[int] = set()

    def paired(self, first: object, second: object) -> bool | None:
        """Whether two objects were paired before; None: neither was met."""
        known = self.partner.get(id(first))
        if known is not None or id(second) in self.taken:
            return known == id(second)
        self.partner[id(first)] = id(second)
        self.taken.add(id(second))
        return None

    def modules(self, first: nn.Module, second: nn.Module) -> bool:
        known = self.paired(first, second)
        if known is not None:
            return known
        kinds: set[Any] = {type(first), type(second)}
        if len(kinds) > 1 or not all(map(is_plain, kinds)) or hooked(first) or hooked(second):
            return False
        mine, yours = first.__dict__, second.__dict__
        if mine.keys() != yours.keys():
            return False
        for name, value in mine.items():
            if name in _ASIDE:
                continue
            other = yours[name]
            if type(value) in ATOMS:
                if (type(other) is not type(value) or value != other) and not self.tolerated(mine, name, other):
                    return False
            elif not (self.tensors if name in _TENSORS else self.values)(value, other):
                return False
        return True

    def tolerated(self, place: dict[str, Any], name: str, other: Any) -> bool:
        """Whether an attribute may be another one."""
        return False

    def tensors(self, first: dict[str, Any], second: dict[str, Any]) -> bool:
        if list(first) != list(second):
            return False
        return all(map(self.shapes, first.values(), second.values()))

    def shapes(self, first: Tensor | None, second: Tensor | None) -> bool:
        if first is None or second is None:
            return first is second
        known = self.paired(first, second)
        if known is not None:
            return known
        alike = type(first) is type(second) and first.shape == second.shape and first.dtype == second.dtype
        return alike and first.stride() == second.stride()

    def values(self, first: Any, second: Any) -> bool:
        kind = type(first)
        if kind is not type(second):
            return False
        if isinstance(first, nn.Module):
            return self.modules(first, second)
        if kind in ATOMS or kind in _SETS:
            return bool(first == second)
        if kind in _DICTS:
            same = list(first) == list(second)
            return same and all(map(self.values, first.values(), second.values()))
        if kind in _LISTS:
            return len(first) == len(second) and all(map(self.values, first, second))
        if isinstance(first, Enum):
            return first is second
        if kind.__module__.partition(".")[0] in _PACKAGES and hasattr(first, "__dict__") and not callable(first):
            known = self.paired(first, second)
            return self.values(vars(first), vars(second)) if known is None else known
        return first is second and _holds_no_module(first)


class Differences(_Comparison):
    """A comparison of two modules that notes where they hold another whole number."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[tuple[dict[str, Any], str, Any]] = []
        """Attributes of the first module, the name of one, and its number."""

    def tolerated(self, place: dict[str, Any], name: str, other: Any) -> bool:
        """Another whole number is noted."""
        if type(place[name]) is int and type(other) is int:
            self.numbers.append((place, name, place[name]))
            return True
        return False


def _holds_no_module(value: object) -> bool:
    """Whether something that both models share can have nothing to do with either."""
    if isinstance(value, FunctionType):
        return value.__closure__ is None
    return isinstance(value, BuiltinFunctionType | Tensor | type)
