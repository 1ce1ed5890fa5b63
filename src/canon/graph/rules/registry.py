"""The table from an operation's name to its rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from canon.graph.state import State
from canon.graph.values import ChannelAxis

Rule = Callable[..., ChannelAxis | list[ChannelAxis | None] | None]


@dataclass(frozen=True)
class Call:
    """The operation that a rule is asked about."""

    name: str
    """Its name: `conv2d`, `relu`, `cat`, ..."""

    out: Any
    """The result on meta tensors: a tensor, or a tuple of them."""

    function: Callable[[torch.Tensor], torch.Tensor]
    """The operation as a function of its first operand, for elementwise use."""

    layer: str
    """Name of the module that makes the call, or of the module that owns its weight."""

    resizable: bool
    """Whether the owner of the weight keeps its sizes in attributes that a rewrite can update."""

    rest_read: bool = True
    """Whether anything but the first of several results may be read."""

    @property
    def rank(self) -> int:
        """Number of axes of the result."""
        return int(self.out.ndim)


_RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule under the names of its operations."""

    def register(function: Rule) -> Rule:
        for name in names:
            assert name not in _RULES, f"two rules for '{name}'"
            _RULES[name] = function
        return function

    return register


def lookup(name: str) -> Rule | None:
    """The rule for an operation, or None when nothing is known about it."""
    return _RULES.get(name)


def rule_names() -> tuple[str, ...]:
    """Every operation that has a rule."""
    return tuple(_RULES)


__all__ = ["Call", "ChannelAxis", "Rule", "State", "lookup", "rule", "rule_names"]
