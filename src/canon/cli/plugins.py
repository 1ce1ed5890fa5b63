"""Schemes and attacks that a user names: by a name that is known, or by where the class is."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from canon.watermarks import Scheme


def scheme_of(name: str) -> Scheme:
    """A scheme, made known first if it is named as `package.module:Class`."""
    from canon import watermarks

    return watermarks.get(watermarks.add(_class_of(name)).name if ":" in name else name)


def attack_of(name: str) -> str:
    """An attack's name, made known first if it is named as `package.module:Class`."""
    from canon import attacks
    from canon.attacks.pipeline import check_ops

    found = attacks.add(_class_of(name)).name if ":" in name else name
    check_ops([found])
    return found


def _class_of(name: str) -> Any:
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that a file here takes no other module's place
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise typer.BadParameter(f"'{name}' cannot be imported: {error}") from error
