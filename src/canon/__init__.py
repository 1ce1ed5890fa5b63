"""Canon: undo neural structural obfuscation, and prove that it was undone.

The names below are loaded when they are first used, so that `import canon` and the command line start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from canon._version import __version__

if TYPE_CHECKING:
    from canon import claims as claims
    from canon import watermarks as watermarks
    from canon.api import JudgeOptions as JudgeOptions
    from canon.api import certify as certify
    from canon.api import judge as judge
    from canon.api import recover as recover
    from canon.attacks import attack as attack
    from canon.claims import commit as commit
    from canon.containment import Location as Location
    from canon.containment import locate as locate
    from canon.graph import trace as trace
    from canon.io import load as load
    from canon.io import save as save
    from canon.verify import LayoutKey as LayoutKey
    from canon.verify import align as align
    from canon.verify import register as register

_HOMES = {
    "trace": "canon.graph",
    "attack": "canon.attacks",
    "recover": "canon.api",
    "certify": "canon.api",
    "locate": "canon.containment",
    "Location": "canon.containment",
    "align": "canon.verify",
    "register": "canon.verify",
    "LayoutKey": "canon.verify",
    "commit": "canon.claims",
    "judge": "canon.api",
    "JudgeOptions": "canon.api",
    "load": "canon.io",
    "save": "canon.io",
}

__all__ = [
    "__version__", "trace", "attack", "recover", "locate", "Location", "certify", "align", "register", "LayoutKey",
    "judge", "JudgeOptions", "commit", "claims", "load", "save", "watermarks",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in ("watermarks", "claims"):
        return importlib.import_module(f"canon.{name}")
    raise AttributeError(f"module 'canon' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
