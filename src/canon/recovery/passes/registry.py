"""The passes, in the order in which they are asked."""

from __future__ import annotations

from typing import Final

from canon.recovery.passes.basis import basis
from canon.recovery.passes.compact import compact
from canon.recovery.passes.endless import endless
from canon.recovery.passes.faint import faint
from canon.recovery.passes.fringe import fringe
from canon.recovery.passes.gated import gated
from canon.recovery.passes.grown import grown
from canon.recovery.passes.interface import Pass
from canon.recovery.passes.mirrored import mirrored
from canon.recovery.passes.straighten import straighten
from canon.recovery.passes.turned import turned
from canon.recovery.passes.unreachable import unreachable

PASSES: Final[tuple[Pass, ...]] = (
    endless,
    grown,
    compact,
    unreachable,
    faint,
    fringe,
    mirrored,
    turned,
    gated,
    basis,
    straighten,
)
"""Asked in turn until none of them finds anything."""
