"""Settings of operations, in which two networks of the same numbers may differ: epsilons, slopes, approximations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from canon.errors import CanonError
from canon.graph import trace
from canon.graph.inputs import fitting
from canon.normal import house
from canon.normal.curves import GRID, PRECISION
from canon.verify.operations import IDLE, Operation, operations_of

SAME: Final = 1e-6
"""Numbers that differ by less, relative to their size, are one: files keep them in float32."""

SIZES: Final = frozenset(
    "size self_size shape normalized_shape groups group N C HxW split_size split_sizes length repeats start end step "
    "index stride storage_offset sizes".split()
)
"""What operations are told of sizes, which say nothing where operands are of other sizes."""


@dataclass(frozen=True)
class Setting:
    """A setting that is not the owner's."""

    what: str
    owner: str
    suspect: str
    whole: bool = False
    """Whether it is made of whole numbers, which one function may be told in several ways."""

    def to_dict(self) -> dict[str, str]:
        """As evidence has it."""
        return {"what": self.what, "owner": self.owner, "suspect": self.suspect}


def other_settings(
    suspect: nn.Module, owner: nn.Module, example: Any, but: Iterable[str] = ()
) -> tuple[Setting, ...] | str:
    """The settings in which a suspect differs from the owner's program, or why they were not compared.

    Both are run, and what torch is asked for is held side by side. Where that is not the same sequence of operations,
    activations are compared by their values, and both are brought into one normal form, which knows the same function
    in other words.

    Args:
        suspect: Aligned, or as it was brought into the owner's form.
        owner: The owner's model, or its program without numbers.
        example: An input tensor or tuple of inputs.
        but: Layers whose settings stand in their numbers.
    """
    try:
        ours, theirs = (
            [o for o in operations_of(m, fitting(example, m)) if o.name not in IDLE] for m in (suspect, owner)
        )
        alike = [one.name for one in ours] == [other.name for other in theirs]
        found = _beside(ours, theirs, frozenset(but)) if alike else _curves(suspect, owner, example, frozenset(but))
        if alike and not any(setting.whole for setting in found):
            return found
        housed = house(suspect, owner, example)
    except (CanonError, ValueError, RuntimeError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
        return str(error)
    if housed.whole:  # axes counted from the other end, say
        return tuple(setting for setting in found if not setting.whole)
    return found or next((part for part in housed.surplus if part.startswith("op")), "other operations")


def _beside(ours: Sequence[Operation], theirs: Sequence[Operation], but: frozenset[str]) -> tuple[Setting, ...]:
    found = []
    for one, other in zip(ours, theirs, strict=True):
        layer = other.tensors[0].rpartition(".")[0] if other.tensors else ""
        if layer in but:
            continue
        where = f"'{layer}'" if layer else other.name
        for name in {**other.settings, **one.settings}:
            mine, yours = one.settings.get(name), other.settings.get(name)
            if not _same(mine, yours) and (one.shapes == other.shapes or name not in SIZES):
                whole = all(type(leaf) is int for leaf in tree_leaves((mine, yours)))
                found.append(Setting(f"{name} of {where}", _told(yours), _told(mine), whole))
        if len(one.constants) != len(other.constants):
            raise ValueError("tensors that one program holds as its own stand in the other's code")
        for mine, yours in zip(one.constants, other.constants, strict=True):
            if not (mine.is_meta or yours.is_meta or _close(mine, yours)):
                found.append(Setting(f"a constant of {where}", _size(yours), _size(mine)))
    return tuple(dict.fromkeys(found))


def _curves(suspect: nn.Module, owner: nn.Module, example: Any, but: frozenset[str]) -> tuple[Setting, ...]:
    """Norms' epsilons and activations' values, space by space."""
    ours, theirs = (
        [stage for space in trace(m, fitting(example, m)).spaces for stage in space.stages] for m in (suspect, owner)
    )
    found = []
    for one, other in zip(ours, theirs, strict=True):
        layer = next(iter(other.params.values()), "").rpartition(".")[0]
        if layer not in but and not _equal(one.eps, other.eps):
            found.append(Setting(f"eps of '{layer}'", _told(other.eps), _told(one.eps)))
        if one.function is None or other.function is None or one.function is other.function:
            continue
        mine, yours = one.function(GRID), other.function(GRID)
        if not bool(((mine - yours).abs() <= PRECISION * (1 + GRID.abs())).all()):
            found.append(Setting("an activation", f"'{other.node}'", f"'{one.node}', of other values"))
    return tuple(dict.fromkeys(found))


def _close(one: Tensor, other: Tensor) -> bool:
    same = one.shape == other.shape
    return same and torch.allclose(one.double(), other.double(), rtol=SAME, atol=0.0, equal_nan=True)


def _size(constant: Tensor) -> str:
    return f"{tuple(constant.shape)} of norm {float(constant.double().norm()):.6g}"


def _same(one: Any, other: Any) -> bool:
    mine, yours = tree_leaves(one), tree_leaves(other)
    return len(mine) == len(yours) and all(map(_equal, mine, yours))


def _equal(one: Any, other: Any) -> bool:
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return isclose(one, other, rel_tol=SAME) or (one != one and other != other) if numbers else one == other


def _told(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else f"{value!s:.60}"
