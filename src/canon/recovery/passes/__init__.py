"""What recovery knows how to undo: one file per kind of redundancy.

A pass looks at a subject and at facts, and returns a rewrite, or None where it finds nothing. It changes nothing,
decides nothing about other passes and need not be sure: every rewrite is proved before it is applied. See
docs/add_a_pass.md.
"""

from canon.recovery.passes.interface import Pass
from canon.recovery.passes.registry import PASSES

__all__ = ["PASSES", "Pass"]
