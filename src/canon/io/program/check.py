"""See that a program runs on its own inputs, and how large its values get, before any of it is run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree

from canon._untrusted import Limits
from canon.errors import CanonError, FileFormatError, reason_of
from canon.graph.tensors import meta_clone


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

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        for value in _pytree.tree_leaves(result):
            if isinstance(value, Tensor):
                self.limits.check_shape(tuple(value.shape), value.element_size(), f"{self.where}: {n.name}")
        return result
