"""Canon: undo neural structural obfuscation, and prove that it was undone."""

from __future__ import annotations

from canon._version import __version__
from canon.attacks import attack as attack

__all__ = ["__version__", "attack"]
