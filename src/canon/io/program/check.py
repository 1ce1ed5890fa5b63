"""See that a program runs on its own inputs, and how large its values get, before any of it is run."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.utils import _pytree

from canon._untrusted import Limits
from canon.errors import CanonError, FileFormatError, LimitError, reason_of
from canon.graph.tensors import meta_clone

MOST_MADE: Final = 1 << 26
"""Numbers that a program may make from nothing, as `zeros` does, when it runs."""


def check_sizes(module: fx.GraphModule, where: str, limits: Limits) -> None:
    """Follow the shapes of all values on the meta device, where nothing is allocated.

    Raises:
        LimitError: A value is larger than a tensor may be.
        FileFormatError: The parts of the program do not fit together.
    """
    clone = meta_clone(module)
    assert isinstance(clone, fx.GraphModule), "a clone is of the same kind"
    inputs = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    try:
        with torch.no_grad(), torch.device("meta"):
            _Sizes(clone, where, limits).run(*inputs)
    except CanonError:
        raise
    except Exception as error:  # whatever torch says about operands that do not fit
        raise FileFormatError(f"the program does not run on its own input: {reason_of(error)}", where=where) from error


class _Sizes(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, where: str, limits: Limits) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self.where, self.limits = where, limits
        self.given: set[fx.Node] = set()
        """Values that depend on inputs."""
        self.made = 0

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """What makes numbers makes them without memory too."""
        if _makes(target):
            kwargs = {**kwargs, "device": "meta"}
        return super().call_function(target, args, kwargs)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        sizes = [self.limits.check_shape(tuple(v.shape), v.element_size(), f"{self.where}: {n.name}")
                 for v in _tensors(result)]  # fmt: skip
        if n.op == "placeholder" or self.given.intersection(n.all_input_nodes):
            self.given.add(n)
        if n.op == "call_function" and (n not in self.given or _makes(n.target)):
            held = max((v.numel() for v in _tensors([self.env.get(node) for node in n.all_input_nodes])), default=0)
            self.made += max(0, sum(sizes) - held)
            if self.made > MOST_MADE:
                raise LimitError("the program makes too many numbers from nothing", where=f"{self.where}: {n.name}")
        if n.kwargs.get("rounding_mode") == "trunc" and any(not v.is_floating_point() for v in _tensors(result)):
            self.check_divisor(n)
        return result

    def check_divisor(self, n: fx.Node) -> None:
        """Torch dies of the lowest whole number divided by -1 when it rounds the quotient by itself."""
        divisor = n.args[1] if len(n.args) > 1 else n.kwargs.get("other")
        if not isinstance(divisor, int) or divisor <= 0:
            reason = "whole numbers are divided by what may be -1, and that can end the process"
            raise FileFormatError(reason, where=f"{self.where}: {n.name}", hint="Export it with floor division")


def _makes(target: Any) -> bool:
    """Whether an operation can be told where to make its result."""
    schema = getattr(target, "_schema", None)
    return schema is not None and any(argument.name == "device" for argument in schema.arguments)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
