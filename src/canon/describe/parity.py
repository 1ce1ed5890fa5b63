"""Where groups of dummies cancel that no two of which are proportional.

Let `z` be what a channel's filter gives. Filters add up, so a value that is *linear* in `z` cancels whenever the
filters do. A value that is *half*, an even function of `z` plus a line, cancels over pairs `z, −z`, whose even parts
are equal. Gates may have a filter of their own; it stays the same for all members of a group, and what depends on it
alone is *even*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from canon.describe.curves import Curves
from canon.graph import Space, Stage

Form = Literal["linear", "half", "even"] | None
"""How the value at a point depends on the channel's filter; None: in no way that cancels."""


def forms(space: Space, curves: Curves) -> dict[int, Form]:
    """The form of the value at every point of a space."""
    gates = _gates(space)
    found: dict[int, Form] = {p.point: "even" if p.point in gates else "linear" for p in space.producers}
    for stage in space.stages:
        found[stage.output] = _after(stage, [found.get(point) for point in stage.inputs], curves)
    return found


def obstacle(space: Space, found: Mapping[int, Form]) -> str | None:
    """Why groups do not cancel here; None: they do."""
    if all(producer.point in found and found[producer.point] == "even" for producer in space.producers):
        return "nothing but gates"
    names = [name for stage in space.stages for name in stage.params.values()]
    if len(names) != len(set(names)):
        return "a layer that is called twice"
    if any(found.get(consumer.point) is None for consumer in space.consumers):
        return "a function whose odd part is not linear"
    return None


def _after(stage: Stage, given: Sequence[Form], curves: Curves) -> Form:
    if None in given:
        return None
    if all(form == "even" for form in given):
        return "even"
    if stage.kind == "add":
        return "linear" if all(form == "linear" for form in given) else "half"
    if stage.kind == "mul":
        others = [form for form in given if form != "even"]
        return others[0] if len(others) == 1 else None
    if stage.kind in ("norm", "depthwise", "scale", "shift"):
        return given[0]
    if stage.kind == "slope":
        return "half" if given[0] == "linear" else None
    if stage.kind != "activation":
        return None
    curve = curves.of(stage.function)
    if stage.reach not in ("pointwise", "mean"):
        return None
    if stage.reach == "mean" or curve.linear:
        return given[0]
    return "half" if curve.half and given[0] == "linear" else None


def _gates(space: Space) -> frozenset[int]:
    """Where filters come in that only serve as factors: of two operands, the one with the shorter history."""
    history: dict[int, tuple[frozenset[int], int]] = {p.point: (frozenset({p.point}), 0) for p in space.producers}
    gates: frozenset[int] = frozenset()
    for stage in space.stages:
        past = [history.get(point, (frozenset[int](), 0)) for point in stage.inputs]
        if stage.kind == "mul" and len(past) == 2 and not past[0][0] & past[1][0]:
            gates |= min(reversed(past), key=lambda entry: entry[1])[0]
        history[stage.output] = (frozenset[int]().union(*(entry[0] for entry in past)), 1 + max(e[1] for e in past))
    return gates
