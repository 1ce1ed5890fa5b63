"""Model files: read from strangers, written whole."""

from __future__ import annotations

from canon.io.limits import Limits
from canon.io.loading import LoadedModel, load, read_model, read_weights
from canon.io.saving import check_format, save

__all__ = ["Limits", "LoadedModel", "check_format", "load", "read_model", "read_weights", "save"]
