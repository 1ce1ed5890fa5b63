"""Layers that do nothing: identity kernels, and norms that are `x · 1 + 0`.

What does nothing is the normal form's knowledge (`canon.normal`). Layers that were put in and disguised then are found
once channels are compact; where their channels were put into another order as well, they are not.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from canon.normal.lower import does_nothing
from canon.rewrite import replace_tensors


def idle_layers(model: nn.Module) -> tuple[str, ...]:
    """Names of the layers that give what they get."""
    return tuple(name for name, module in model.named_modules() if name and does_nothing(module))


def without(model: nn.Module, names: Iterable[str]) -> nn.Module:
    """A copy in which the identity stands for some layers."""
    lean = replace_tensors(model, {})
    for name in names:
        parent, _, own = name.rpartition(".")
        setattr(lean.get_submodule(parent), own, nn.Identity())
    return lean
