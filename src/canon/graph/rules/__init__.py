"""One channel rule per operation, found by the operation's name. What is not here pins.

A rule is called as `rule(state, call, *operands)`: operands are the operation's own arguments with tensors replaced by
`Value`. It returns the layout of the result (a list of layouts for an operation with several results).
"""

from __future__ import annotations

from canon.graph.rules import activations, elementwise, linear, norms, pooling, recurrent, shaping
from canon.graph.rules.activations import ALIASES as ALIASES
from canon.graph.rules.registry import Call as Call
from canon.graph.rules.registry import Rule as Rule
from canon.graph.rules.registry import lookup as lookup
from canon.graph.rules.registry import rule_names as rule_names
from canon.graph.rules.shaping import VIEWS as VIEWS

__all__ = [
    "ALIASES", "Call", "Rule", "VIEWS", "activations", "elementwise", "linear", "lookup", "norms", "pooling",
    "recurrent", "rule_names", "shaping",
]  # fmt: skip
