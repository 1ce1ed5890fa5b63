"""A suspect's numbers in the owner's program: the same network under the owner's names and in its order.

Both programs are brought into a normal form and matched as graphs. The suspect's layers are then written where their
counterparts stand in the owner's program. Of the owner's nothing is used but the program: no number. Where all matches,
the result computes what the suspect does; where something has no counterpart, it is named, and zeros stand there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from canon.graph import probes, trace
from canon.graph.inputs import fitting, map_tensors, tensors_in
from canon.graph.tensors import clone_with, tensor_names
from canon.normal.building import Builder
from canon.normal.chains import Written, fit
from canon.normal.items import Item, items_of, outputs_of
from canon.normal.lower import lower, program_graph
from canon.normal.matching import BudgetSpent, Match, match
from canon.normal.nodes import Graph, Node, NotNormal
from canon.normal.planned import Planned, planned
from canon.normal.positions import ranks
from canon.normal.respelling import respelled
from canon.normal.simplify import ONE_POSITION, simplify, telling
from canon.normal.turning import Tangled, turn

SAME_OUTPUTS: Final = 1e-4
"""The suspect and its numbers in the owner's program differ by rounding alone: by no more than this of their range."""

SAMPLES: Final = 4

SCALES: Final = (1.0, 1e-3, 1e3, 1e6, 1e9)
"""Sizes of inputs that outputs are compared at where operations were not matched: one may do nothing for small ones."""

MOST_CHOICES: Final = 16
"""Ways to choose the owner's outputs from a suspect's that are tried."""


@dataclass(frozen=True, eq=False)
class Housed:
    """A suspect in the owner's program."""

    model: fx.GraphModule
    """The owner's program with the suspect's numbers."""

    steps: tuple[str, ...]
    """What was done to the suspect's program, in words; each step changes nothing."""

    missing: tuple[str, ...]
    """Layers of the owner's without a counterpart: zeros stand there."""

    surplus: tuple[str, ...]
    """Layers and outputs of the suspect's without a counterpart: they were left out."""

    whole: bool
    """Whether the owner's outputs are computed as the suspect computes its own, operation by operation."""

    difference: float | None
    """Between the suspect's outputs and those of `model`, in float64, relative to their range; None: not compared."""

    outputs: tuple[int | None, ...] = ()
    """By output of the owner's: the suspect's."""

    tied: tuple[tuple[str, ...], ...] = ()
    """Operands that structure did not tell apart: by tie, the owner's layers that make one of them."""

    turned: frozenset[int] = frozenset()
    """Ties in which not the first operand was taken that fits, but the next."""

    @property
    def exact(self) -> bool:
        """Whether `model` computes what the suspect does, as far as the owner's program goes."""
        return not self.missing and self.difference is not None and self.difference <= SAME_OUTPUTS


def house(suspect: nn.Module, owner: nn.Module, example: Any, *, turned: Set[int] = frozenset()) -> Housed:
    """Write a suspect's numbers into the owner's program.

    Args:
        suspect: In evaluation mode. It is not changed.
        owner: The owner's model, or `Outline.model()` of a key; only its program and shapes are used.
        example: An input tensor or tuple of inputs.
        turned: Ties (`Housed.tied`), by number, in which the next operand that fits is to be taken.

    Raises:
        NotNormal: One of the programs cannot be read, or matching takes too long.
    """
    found = _housed(suspect, owner, example, turned)
    if found.exact:
        return found
    norms = planned(owner, fitting(example, owner))
    for layouts, linear in ((False, False), (True, False), (True, True)):
        given = fitting(example, suspect)
        again = respelled(suspect, program_graph(suspect, given), given, layouts=layouts, linear=linear)
        if again is not None:
            better = _housed(again[0], owner, example, turned, norms)
            if better.exact or len(better.missing) < len(found.missing):
                found = replace(better, steps=(*again[1], *better.steps))
        if found.exact:
            break
    return found


def _housed(
    suspect: nn.Module, owner: nn.Module, example: Any, turned: Set[int], norms: Planned | None = None
) -> Housed:
    theirs = program_graph(owner, fitting(example, owner))
    given = fitting(example, owner)
    plan = lower(owner, given, theirs, owner=True) if norms is None else norms.plan(given)
    program = program_graph(suspect, fitting(example, suspect))
    mine = lower(suspect, fitting(example, suspect), program)
    alike = {ONE_POSITION} if ranks(plan) == ranks(mine) else set()
    simplify(plan, weights=False, kept=alike)
    plan_items = items_of(plan)
    wanted, kept = outputs_of(plan, plan_items), telling(plan) | alike
    try:
        steps, items, found = _matched(mine, plan_items, wanted, kept, turned)
        count = len(mine.output.inputs)
        if not found.whole and count > len(wanted):
            # What a suspect gives besides may stand in the middle of what is one layer for the owner.
            for chosen in islice(combinations(range(count), len(wanted)), MOST_CHOICES):
                less = lower(suspect, fitting(example, suspect), program)
                less.output.inputs = [less.output.inputs[place] for place in chosen]
                less.settle()
                again = _matched(less, plan_items, wanted, kept, turned)
                if again[2].whole:
                    steps, items, found = again
                    found = replace(found, outputs=tuple(None if p is None else chosen[p] for p in found.outputs))
                    break
    except BudgetSpent as error:
        raise NotNormal("the programs are too large to be matched: the budget for it is spent") from error
    values, tensors, said, missing, idle = _numbers(found, plan_items)
    whole = found.whole and not missing and not idle
    if whole:
        try:
            values = turn(found, plan_items, values)
        except Tangled:
            whole = False
            missing = ["the order of concatenated channels"]
    builder = Builder(owner, theirs, trace(owner, fitting(example, owner)))
    model = builder.build(values, tensors)
    left, outputs = (*_layers_left(found, items), *idle), found.outputs
    if not whole and not missing and not left and count == len(wanted):
        # All numbers have their places: what differs holds none, and can only be another way to write the same.
        outputs, left = tuple(range(count)), (f"operation '{_first_alone(found, items)}', compared by outputs alone",)
    left = (*(f"output {place}" for place in range(count) if place not in outputs), *left)
    compared = not missing and not idle and None not in outputs
    difference = _difference(suspect, model, example, outputs, SCALES if not whole else (1.0,)) if compared else None
    return Housed(
        model,
        (*steps, *said),
        tuple(missing),
        left,
        whole,
        difference,
        outputs,
        tuple(_makers(item) for item in found.ties),
        frozenset(turned),
    )


def _matched(
    graph: Graph, plan: list[Item], wanted: list[Item], kept: Set[str], turned: Set[int]
) -> tuple[list[str], list[Item], Match]:
    """A suspect's program in its normal form, and its counterparts in the owner's."""
    steps = simplify(graph, kept=kept)
    items = items_of(graph)
    return steps, items, match(plan, wanted, items, outputs_of(graph, items), turned)


def _makers(item: Item) -> tuple[str, ...]:
    """The layers that make a value, those before them left out."""
    while item.node.kind not in ("linear", "input", "tensor") and item.inputs:
        if any(member.kind == "linear" for member in item.members):
            break
        item = item.inputs[0]
    return tuple(member.value.name for member in item.members if member.kind == "linear")


def has_ties(owner: nn.Module, example: Any) -> bool:
    """Whether a program has operands that structure does not tell apart; False where it cannot be read."""
    try:
        plan = lower(owner, example, owner=True)
        simplify(plan, weights=False, kept={ONE_POSITION})
        items = items_of(plan)
        given = outputs_of(plan, items)
        return bool(match(items, given, items, given).ties)
    except (NotNormal, BudgetSpent):
        return False


def _numbers(
    found: Match, plan: list[Item]
) -> tuple[dict[Node, Written], dict[Node, Mapping[str, Tensor]], list[str], list[str], list[str]]:
    """By linear map and by other layer of the owner's: the suspect's numbers; what was done; what has none; what was
    left out before a layer, such as inputs that the suspect shifts and scales by itself."""
    values: dict[Node, Written] = {}
    tensors: dict[Node, Mapping[str, Tensor]] = {}
    said: list[str] = []
    missing: list[str] = []
    idle: list[str] = []
    for item in plan:
        other, kind = found.pairs.get(item), item.node.kind
        if kind in ("linear", "affine"):
            fitted = None if other is None else fit(item.members, other.members)
            if fitted is None and other is not None and other.members[0].kind == "affine":
                first = next((at for at, member in enumerate(other.members) if member.kind == "linear"), 0)
                fitted = fit(item.members, other.members[first:])
                idle += [] if fitted is None else [f"layer '{member.name}'" for member in other.members[:first]]
            if fitted is None:
                missing += [member.name for member in item.members if other is not None or _holds_numbers(member)]
            else:
                values.update(fitted.values)
                said += fitted.said
        elif kind == "tensor":
            if other is None:
                missing.append(item.node.name)
            else:
                tensors[item.node] = {"": other.node.value}
        elif item.node.tensors:
            if other is None:
                missing.append(item.node.name)
            else:
                tensors[item.node] = other.node.tensors
    return values, tensors, said, missing, idle


def _layers_left(found: Match, items: list[Item]) -> list[str]:
    used = set(found.pairs.values())
    left = [
        f"layer '{member.name}'"
        for item in items
        if item not in used
        for member in item.members
        if _holds_numbers(member)
    ]
    others = [
        f"{theirs.called} where the owner's has {mine.called}"
        for mine, theirs in found.pairs.items()
        if mine.label != theirs.label and mine.loose == theirs.loose == ("curve",)
    ]
    return list(dict.fromkeys(others + left))


def _holds_numbers(member: Node) -> bool:
    """Whether there are numbers in a value's operation that a program does not write down: a layer's or a tensor's."""
    if member.kind == "affine":
        return bool(member.value.sources) or member.value.scale.numel() > 1 or member.value.shift.numel() > 1
    return member.kind in ("linear", "tensor") or bool(member.tensors)


def _first_alone(found: Match, items: list[Item]) -> str:
    used = set(found.pairs.values())
    return next((item.node.name for item in items if item not in used), "")


def _difference(
    suspect: nn.Module, model: nn.Module, example: Any, outputs: tuple[int | None, ...], scales: Sequence[float]
) -> float | None:
    """How far both compute the same, in float64 where they can; None where they cannot be run."""
    found = _gaps(_double(suspect), _double(model), _double_example(example), outputs, scales)
    # A program that casts is run in its own precision.
    return _gaps(suspect, model, fitting(example, suspect), outputs, scales) if found is None else found


def _gaps(
    one: nn.Module, two: nn.Module, example: Any, outputs: tuple[int | None, ...], scales: Sequence[float]
) -> float | None:
    found = [_gap(one, two, example, outputs, scale) for scale in scales]
    known = [gap for gap in found if gap is not None]
    return max(known) if len(known) == len(found) else None


def _gap(one: nn.Module, two: nn.Module, example: Any, outputs: tuple[int | None, ...], scale: float) -> float | None:
    worst, seen = 0.0, []
    try:
        with torch.no_grad():
            for call in map_tensors(lambda x: x * scale if x.is_floating_point() else x, probes(example, SAMPLES)):
                # `forward` itself: called as modules, programs of torch.fx print what goes wrong in them.
                ours, theirs = (list(tensors_in(m.forward(*fitting(call, m)))) for m in (one, two))
                for place, result in zip(outputs, theirs, strict=True):
                    other = ours[place] if place is not None else result
                    worst = max(worst, float((other - result).abs().max()))
                    seen.append(result.flatten())
        both = torch.cat(seen)
        spread = float((both - both.mean()).abs().max())
    except Exception:
        return None
    return worst / spread if spread > 0 and worst == worst else None


def _double(model: nn.Module) -> nn.Module:
    """A copy in float64."""
    replaced: dict[int, Tensor] = {}
    for tensor in tensor_names(model)[0].values():
        data = tensor.detach().double() if tensor.is_floating_point() else tensor.detach().clone()
        replaced[id(tensor)] = nn.Parameter(data, requires_grad=False) if isinstance(tensor, nn.Parameter) else data
    return clone_with(model, replaced)


def _double_example(example: Any) -> Any:
    given = example if isinstance(example, tuple) else (example,)
    return tuple(x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in given)
