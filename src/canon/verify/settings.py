"""Settings of operations, in which two networks of the same numbers may differ: epsilons, slopes, approximations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any, Final

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from canon.errors import CanonError
from canon.normal import house
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


def other_settings(
    suspect: nn.Module, owner: nn.Module, example: Tensor | tuple[Any, ...], but: Iterable[str] = ()
) -> tuple[Setting, ...] | str:
    """The settings in which a suspect differs from the owner's program, or why they were not compared.

    Both are run, and what torch is asked for is held side by side. Where that is not the same sequence of operations,
    they are brought into one normal form, which knows the same function in other words.

    Args:
        suspect: Aligned, or as it was brought into the owner's form.
        owner: The owner's model, or its program without numbers.
        example: An input tensor or tuple of inputs.
        but: Layers whose settings stand in their numbers.
    """
    try:
        ours, theirs = ([o for o in operations_of(m, example) if o.name not in IDLE] for m in (suspect, owner))
        if [one.name for one in ours] == [other.name for other in theirs]:
            return _beside(ours, theirs, frozenset(but))
        housed = house(suspect, owner, example)
    except (CanonError, ValueError, RuntimeError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
        return str(error)
    return () if housed.whole else next(iter((*housed.surplus, *housed.missing)), "other operations")


def _beside(ours: Sequence[Operation], theirs: Sequence[Operation], but: frozenset[str]) -> tuple[Setting, ...]:
    found = []
    for one, other in zip(ours, theirs, strict=True):
        layer = other.tensors[0].rpartition(".")[0] if other.tensors else ""
        if layer in but:
            continue
        for name in {**other.settings, **one.settings}:
            if one.shapes != other.shapes and name in SIZES:
                continue
            mine, yours = one.settings.get(name), other.settings.get(name)
            if not _same(mine, yours):
                where = f"{name} of '{layer}'" if layer else f"{name} of {other.name}"
                found.append(Setting(where, _told(yours), _told(mine)))
    return tuple(dict.fromkeys(found))


def _same(one: Any, other: Any) -> bool:
    mine, yours = tree_leaves(one), tree_leaves(other)
    return len(mine) == len(yours) and all(map(_equal, mine, yours))


def _equal(one: Any, other: Any) -> bool:
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    return isclose(one, other, rel_tol=SAME) or (one != one and other != other) if numbers else one == other


def _told(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else f"{value!s:.60}"
