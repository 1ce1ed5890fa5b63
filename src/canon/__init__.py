"""Canon: undo neural structural obfuscation, and prove that it was undone.

The names below are loaded when they are first used, so that `import canon` and the command line start at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from canon._version import __version__

if TYPE_CHECKING:
    from canon import claims, watermarks
    from canon.api import JudgeOptions, certify, judge, recover
    from canon.attacks import attack
    from canon.claims import commit
    from canon.containment import Location, locate
    from canon.graph import trace
    from canon.io import load, save
    from canon.verify import LayoutKey, align, register

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
