"""Model files: read from strangers, written whole."""

from __future__ import annotations

from canon.io.limits import Limits

__all__ = ["Limits"]
