"""A suspect that is another program than the owner's: its numbers in the owner's program."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from torch import nn

from canon.errors import CanonError
from canon.graph.inputs import tensors_in
from canon.normal import Housed, Outline, house
from canon.verify.architecture import Architecture


def brought(
    suspect: nn.Module,
    example: Any,
    reference: nn.Module | None,
    outline: Outline | None,
    turned: Set[int] = frozenset(),
) -> tuple[Housed | None, str]:
    """A suspect in the owner's program, or why it cannot be.

    Args:
        suspect: In evaluation mode. It is not changed.
        example: An input tensor or tuple of inputs.
        reference: The owner's model, if it is at hand; only its program is used.
        outline: Otherwise what its layout key says of the program.
        turned: Ties in which the next operand that fits is to be taken.
    """
    if reference is None and outline is None:
        return None, "the layout key was made before keys kept the program; make it again"
    try:
        owner = reference if reference is not None else outline.model()  # type: ignore[union-attr]
        found = house(suspect, owner, example, turned=turned)
    except (CanonError, ValueError, RuntimeError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
        # A key's program is a stranger's data: its layers may fit in name only.
        return None, str(error)
    if not found.whole and 2 * len(found.missing) > sum(1 for m in found.model.modules() if [*m.parameters(False)]):
        return None, f"{len(found.missing)} layers have no counterpart in the suspect, first '{found.missing[0]}'"
    return found, ""


def same_order(expected: Architecture, got: Architecture) -> bool:
    """Whether layers stand under the same names in the same order of execution."""
    return [name for name in expected.shapes if name in got.shapes] == [n for n in got.shapes if n in expected.shapes]


class Picked(nn.Module):
    """A model of which some outputs are taken: those that stand for the owner's."""

    def __init__(self, model: nn.Module, outputs: tuple[int, ...]) -> None:
        super().__init__()
        self.model, self.outputs = model, outputs
        self.eval()

    def forward(self, *args: Any) -> Any:
        """The chosen outputs."""
        found = list(tensors_in(self.model(*args)))
        chosen = [found[place] for place in self.outputs]
        return chosen[0] if len(chosen) == 1 else tuple(chosen)


def as_given(suspect: nn.Module, housed: Housed) -> nn.Module:
    """The suspect as it was given, with the outputs alone that the owner's network has too."""
    places = [place for place in housed.outputs if place is not None]
    if len(places) < len(housed.outputs):
        return suspect
    return Picked(suspect, tuple(places))


def program_figures(housed: Housed | None) -> dict[str, Any] | None:
    """What was done to the suspect's program, as plain data."""
    if housed is None:
        return None
    return {
        "steps": list(housed.steps),
        "missing": list(housed.missing),
        "surplus": list(housed.surplus),
        "whole": housed.whole,
        "difference": housed.difference,
        "exact": housed.exact,
        "outputs": list(housed.outputs),
        "ties": len(housed.tied),
    }
