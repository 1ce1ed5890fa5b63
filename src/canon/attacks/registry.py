"""Primitives by name: the three of Yan et al., and those of installed plugins.

A plugin names its class under the entry point group `canon.attacks`:

    [project.entry-points."canon.attacks"]
    my_attack = "my_package.attack:MyAttack"
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Final

from canon.attacks.interface import Primitive
from canon.attacks.options import MIX
from canon.errors import AttackError

GROUP: Final = "canon.attacks"

_BUILT_IN: Final = {
    "nso_zero": "canon.attacks.nso_zero:NsoZero",
    "nso_clique": "canon.attacks.nso_clique:NsoClique",
    "nso_split": "canon.attacks.nso_split:NsoSplit",
}


def names() -> tuple[str, ...]:
    """Every primitive that can be asked for: Canon's own, then plugins.

    >>> names()[:3]
    ('nso_zero', 'nso_clique', 'nso_split')
    """
    return tuple(_targets())


def get(name: str) -> Primitive:
    """The primitive of this name."""
    targets = _BUILT_IN if name in _BUILT_IN else _targets()  # looking for plugins takes time
    if name not in targets:
        raise AttackError(f"no attack '{name}'", hint=f"Known: {', '.join((*targets, *MIX))}")
    module, _, attribute = targets[name].partition(":")
    found = getattr(importlib.import_module(module), attribute)
    if not (isinstance(found, type) and issubclass(found, Primitive)):
        raise AttackError("the entry point does not name a subclass of canon.attacks.Primitive", where=targets[name])
    primitive = found()
    if primitive.name != name:
        raise AttackError(
            f"the attack calls itself '{primitive.name}' but is registered as '{name}'", where=targets[name]
        )
    return primitive


def _targets() -> dict[str, str]:
    """Name to `module:class`; nothing is imported yet."""
    targets = dict(_BUILT_IN)
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        if entry.name in MIX or targets.setdefault(entry.name, entry.value) != entry.value:
            raise AttackError(
                f"two attacks are called '{entry.name}'; one is {entry.value}",
                hint="Uninstall one of the packages, or ask its author for another name",
            )
    return targets
