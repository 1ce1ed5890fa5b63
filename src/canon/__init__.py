"""Canon: undo neural structural obfuscation, and prove that it was undone."""

from __future__ import annotations

from canon._version import __version__

__all__ = ["__version__"]
