"""Widths that the forward pass reads from a layer's attributes, such as `self.fc.in_features`.

A rewrite brings those attributes up to date, so a forward pass that computes with one would become another function.
torch.fx sees only the number; on the clone that it traces, the number tells that it was used.
"""

from __future__ import annotations

from typing import Any

from torch import fx, nn

_ATTRIBUTES = (
    "in_channels", "out_channels", "in_features", "out_features", "num_features", "num_channels", "num_parameters",
)  # fmt: skip
_OPERATIONS = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow divmod rdivmod neg pos abs float "
    "lt le gt ge eq ne bool"
).split()


class Counted(int):
    """A width that writes down that it took part in a computation."""

    used: set[str]
    name: str

    __hash__ = int.__hash__


def _telling(operation: str) -> Any:
    plain = getattr(int, operation)

    def tell(self: Counted, *others: Any) -> Any:
        self.used.add(self.name)
        return plain(self, *others)

    return tell


for _operation in _OPERATIONS:
    setattr(Counted, f"__{_operation}__", _telling(f"__{_operation}__"))


def count_uses(model: nn.Module) -> set[str]:
    """Make a model's widths tell; gives the set of names that fills while the model is traced."""
    used: set[str] = set()
    for path, module in model.named_modules():
        if type(module).__module__.startswith("torch.nn."):
            for attribute in _ATTRIBUTES:
                width = module.__dict__.get(attribute)
                if type(width) is int:
                    counted = Counted(width)
                    counted.used, counted.name = used, f"{path}.{attribute}"
                    module.__dict__[attribute] = counted
    return used


def uses_in(graph: fx.Graph) -> set[str]:
    """Widths that stand among the arguments of a traced graph."""
    found: set[str] = set()

    def look(argument: Any) -> Any:
        if isinstance(argument, Counted):
            found.add(argument.name)
        return argument

    for node in graph.nodes:
        fx.node.map_aggregate((node.args, node.kwargs), look)
    return found
