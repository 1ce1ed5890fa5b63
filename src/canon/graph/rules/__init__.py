"""One channel rule per operation, found by the operation's name. What is not here pins.

A rule is called as `rule(state, call, *operands)`: operands are the operation's own arguments with tensors replaced by
`Value`. It returns where the channels of the result are (a list for an operation with several results).
"""

from __future__ import annotations

from canon.graph.rules import activations, elementwise, folding, linear, norms, pooling, recurrent, shaping
from canon.graph.rules.activations import ALIASES, IDENTITY, ZEROS
from canon.graph.rules.folding import FOLDING, MOVES
from canon.graph.rules.linear import PRODUCTS
from canon.graph.rules.registry import Call, Rule, lookup, rule_names
from canon.graph.rules.shaping import VIEWS

__all__ = [
    "ALIASES", "Call", "FOLDING", "IDENTITY", "MOVES", "PRODUCTS", "Rule", "VIEWS", "ZEROS", "activations",
    "elementwise", "folding", "linear", "lookup", "norms", "pooling", "recurrent", "rule_names", "shaping",
]  # fmt: skip
