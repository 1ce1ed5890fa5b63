"""The answers that a verdict is computed from: four questions, each with its numbers and what it does not cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

NetworkWord = Literal["equal", "contained", "derived", "unrelated", "not decided"]
FunctionWord = Literal["agree", "disagree", "not decided"]
MarkWord = Literal["read", "unread", "void", "no key"]
PriorityWord = Literal["first", "not first", "nothing shown"]


@dataclass(frozen=True)
class Network:
    """Is it the same network?"""

    answer: NetworkWord
    reason: str
    """One sentence that names what was compared."""

    compared: float = 0.0
    """Share of the owner's numbers, of those that the forward pass uses, that were compared."""

    coverage: float = 0.0
    """Share of the owner's channels that were found, beyond what chance finds."""

    residual: float | None = None
    """Worst relative residual of what was compared; None where nothing was."""

    missing: Sequence[Mapping[str, Any]] = ()
    """What was not compared: `what`, `numbers` and `why`, largest first."""

    notes: tuple[str, ...] = ()
    """What else must be said in the same breath."""


@dataclass(frozen=True)
class Function:
    """Do outputs agree on probes?"""

    answer: FunctionWord
    reason: str
    difference: float | None = None
    """Largest difference over all probes, relative to the largest output; None where nothing was computed."""

    same_decision: float | None = None
    """Share of probes on which the largest output is the same one."""

    probes: Mapping[str, int] = field(default_factory=dict)
    """How many probes of each source: `random`, or the name of what the user gave."""

    correlation: float | None = None
    """Of how outputs move from one random probe to the next: 1 where they differ by a factor and offsets alone."""


@dataclass(frozen=True)
class MarkAnswer:
    """Does it carry the owner's mark?"""

    answer: MarkWord
    reason: str
    p_value: float | None = None
    """Chance of as many right bits with a random message; None where nothing was read."""


@dataclass(frozen=True)
class Priority:
    """Was the claim there first?"""

    answer: PriorityWord
    reason: str
    claims: Sequence[Mapping[str, Any]] = ()
    """Each claim that was looked at, as plain data: whose, of when, what it covers, what is wrong with it."""


@dataclass(frozen=True)
class Answers:
    """Everything that a verdict may rest on."""

    network: Network
    function: Function
    mark: MarkAnswer
    priority: Priority
