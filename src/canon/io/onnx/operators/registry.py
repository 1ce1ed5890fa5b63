"""The table from an operator's name to the function that builds it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

MICROSOFT: Final = "com.microsoft"
"""Domain of the operators that onnxruntime writes when it optimises or quantizes a model."""

NCHWC: Final = "com.microsoft.nchwc"
"""Domain of its operators on channels in blocks."""

Result = Any
"""A value, or a list of them where an operator has several outputs."""

Operator = Callable[..., Result]
"""Given the builder, the node and its operands."""

_OPERATORS: dict[tuple[str, str], Operator] = {}


def operator(*names: str, domain: str = "") -> Callable[[Operator], Operator]:
    """Register the builder of one or several operators."""

    def register(function: Operator) -> Operator:
        for name in names:
            assert (name, domain) not in _OPERATORS, f"two builders for '{name}'"
            _OPERATORS[name, domain] = function
        return function

    return register


def lookup(name: str, domain: str) -> Operator | None:
    """The builder of an operator; None when it is not known."""
    return _OPERATORS.get((name, domain))


def operator_names() -> tuple[str, ...]:
    """Every operator that is read, sorted."""
    return tuple(sorted(f"{domain}.{name}".lstrip(".") for name, domain in _OPERATORS))
