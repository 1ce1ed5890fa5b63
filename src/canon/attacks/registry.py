"""Primitives by name: the three of Yan et al., seven that answer recovery, and those of installed plugins.

A plugin names its class under the entry point group `canon.attacks`:

    [project.entry-points."canon.attacks"]
    my_attack = "my_package.attack:MyAttack"
"""

from __future__ import annotations

import importlib
from typing import Final

from canon._plugins import entry_points
from canon.attacks.interface import Primitive
from canon.attacks.options import MIX
from canon.errors import AttackError

GROUP: Final = "canon.attacks"

_BUILT_IN: Final = {
    "nso_zero": "canon.attacks.nso_zero:NsoZero",
    "nso_clique": "canon.attacks.nso_clique:NsoClique",
    "nso_split": "canon.attacks.nso_split:NsoSplit",
    "dead_range": "canon.attacks.dead_range:DeadRange",
    "dead_data": "canon.attacks.dead_data:DeadData",
    "odd_group": "canon.attacks.odd_group:OddGroup",
    "odd_replace": "canon.attacks.odd_replace:OddReplace",
    "entangled": "canon.attacks.entangled:Entangled",
    "tiny_column": "canon.attacks.tiny_column:TinyColumn",
    "noisy_clique": "canon.attacks.noisy_clique:NoisyClique",
}

_ADDED: Final[dict[str, type[Primitive]]] = {}
"""Primitives of this process alone."""


def add(primitive: type[Primitive]) -> type[Primitive]:
    """Make a primitive known to this process, as a notebook or test needs it; a package names an entry point instead.

    Adding a class of the same module and name again replaces it. Works as a decorator.
    """
    name = primitive.name
    known = _ADDED.get(name, object)
    again = (known.__module__, known.__qualname__) == (primitive.__module__, primitive.__qualname__)
    if name in (*MIX, *names()) and not again:
        raise AttackError(f"there is an attack called '{name}' already", hint="Give yours another name")
    _ADDED[name] = primitive
    return primitive


def names() -> tuple[str, ...]:
    """Every primitive that can be asked for: Canon's own, then plugins.

    >>> names()[:3]
    ('nso_zero', 'nso_clique', 'nso_split')
    """
    return tuple(dict.fromkeys((*_targets(), *_ADDED)))


def get(name: str) -> Primitive:
    """The primitive of this name."""
    if name in _ADDED:
        return _ADDED[name]()
    targets = _BUILT_IN if name in _BUILT_IN else _targets()  # looking for plugins takes time
    if name not in targets:
        raise AttackError(f"no attack '{name}'", hint=f"Known: {', '.join((*names(), *MIX))}")
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
