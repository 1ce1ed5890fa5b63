"""Primitives by name: the three of Yan et al., fifteen that answer recovery, and those of installed plugins.

A plugin names its class under the entry point group `canon.attacks`:

    [project.entry-points."canon.attacks"]
    my_attack = "my_package.attack:MyAttack"
"""

from __future__ import annotations

from typing import Final

from canon._plugins import Registry
from canon.attacks.interface import Primitive
from canon.attacks.options import MIX
from canon.errors import AttackError

_BUILT_IN: Final = {
    "nso_zero": "canon.attacks.nso:NsoZero",
    "nso_clique": "canon.attacks.nso:NsoClique",
    "nso_split": "canon.attacks.nso:NsoSplit",
    "dead_range": "canon.attacks.dead:DeadRange",
    "dead_data": "canon.attacks.dead:DeadData",
    "odd_group": "canon.attacks.odd:OddGroup",
    "odd_replace": "canon.attacks.odd:OddReplace",
    "entangled": "canon.attacks.odd:Entangled",
    "tiny_column": "canon.attacks.weak:TinyColumn",
    "noisy_clique": "canon.attacks.weak:NoisyClique",
    "idle_layer": "canon.attacks.prepared:IdleLayer",
    "idle_branch": "canon.attacks.prepared:IdleBranch",
    "grown_kernel": "canon.attacks.prepared:GrownKernel",
    "wide_basis": "canon.attacks.prepared:WideBasis",
    "constant": "canon.attacks.prepared:Constant",
    "endless": "canon.attacks.prepared:Endless",
    "turned_heads": "canon.attacks.heads:TurnedHeads",
    "turned_streams": "canon.attacks.streams:TurnedStreams",
}

PRIMITIVES: Final[Registry[Primitive]] = Registry(Primitive, "canon.attacks", "attack", AttackError, _BUILT_IN, MIX)


def add(primitive: type[Primitive]) -> type[Primitive]:
    """Make a primitive known to this process, as a notebook or test needs it; a package names an entry point instead.

    Adding a class of the same module and name again replaces it. Works as a decorator.
    """
    return PRIMITIVES.add(primitive)


def names() -> tuple[str, ...]:
    """Every primitive that can be asked for: Canon's own, then plugins.

    >>> names()[:3]
    ('nso_zero', 'nso_clique', 'nso_split')
    """
    return PRIMITIVES.names()


def get(name: str) -> Primitive:
    """The primitive of this name."""
    return PRIMITIVES.get(name)
