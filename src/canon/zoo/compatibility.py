"""The one place that knows how to import torchvision beside a torch it was not built for.

torchvision's binary wheel registers its operators in a compiled library. When that library was
built for another torch (a CUDA build beside a CPU torch, say) it is skipped in silence, and the
import then dies with `operator torchvision::nms does not exist`, because two of torchvision's
Python files attach kernels to operators nobody defined. The models and datasets need none of those
operators, so naming them first is enough.

With a matching pair nothing here runs but a plain import.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress
from types import ModuleType
from typing import Any

import torch

from canon.errors import MissingExtraError, import_extra

_OPERATORS = ("nms", "qnms")
_SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
# A library handle undoes its definitions when it is collected, so it must live as long as we do.
_definitions: list[torch.library.Library] = []


def import_torchvision() -> ModuleType:
    """Import torchvision, defining its detection operators first when its own library cannot."""
    try:
        torchvision: ModuleType = import_extra("torchvision", "zoo")
        return torchvision
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    _forget("torchvision")
    _define_operators()
    return importlib.import_module("torchvision")


def import_timm() -> ModuleType:
    """Import timm, which imports torchvision itself."""
    import_torchvision()
    timm: ModuleType = import_extra("timm", "zoo")
    return timm


def import_transformers() -> Any:
    """Import transformers, whose image models import torchvision where it is installed."""
    with suppress(MissingExtraError):
        import_torchvision()
    return _errors_only(import_extra("transformers", "transformers"))


def import_diffusers() -> Any:
    """Import diffusers."""
    with suppress(MissingExtraError):
        import_transformers()
    return _errors_only(import_extra("diffusers", "transformers"))


def _errors_only(package: Any) -> Any:
    """The package, which from now on logs errors alone."""
    package.logging.set_verbosity_error()
    return package


def _define_operators() -> None:
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in _OPERATORS:
        library.define(operator + _SIGNATURE)
    _definitions.append(library)


def _forget(package: str) -> None:
    """Drop a half-imported package, so that the next import starts over."""
    for name in list(sys.modules):
        if name == package or name.startswith(package + "."):
            del sys.modules[name]
