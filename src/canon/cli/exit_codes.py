"""What the exit status of `canon` means. Scripts rely on it: a failure of ours never looks like a verdict."""

from __future__ import annotations

from enum import IntEnum
from typing import final


@final
class ExitCode(IntEnum):
    """The exit status of `canon`."""

    OK = 0
    """Done; for a verdict: proved or matches."""
    REFUTED = 1
    """A verdict: refuted."""
    USAGE = 2
    """The arguments, the files or the model do not allow what was asked."""
    INCONCLUSIVE = 3
    """A verdict: inconclusive."""
    INTERNAL = 70
    """A fault in Canon."""
    INTERRUPTED = 130
    """Stopped with Ctrl-C."""
    BROKEN_PIPE = 141
    """Whoever read the output stopped reading."""
