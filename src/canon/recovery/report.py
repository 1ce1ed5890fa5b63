"""What recovery found, space by space, with the numbers that decided it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from canon._shown import Shown
from canon.graph import ChannelGraph, Space
from canon.recovery.outcome import SpaceOutcome
from canon.recovery.tolerance import Tolerance

if TYPE_CHECKING:
    from canon.recovery.engine import History

Kind = Literal["zero-in", "zero-out", "clique", "duplicate", "constant"]


@dataclass(frozen=True)
class Decision:
    """One judgement about channels of a space."""

    kind: Kind
    """zero-in: always zero. zero-out: nothing reads it. clique: equal signals whose readings cancel. duplicate: equal
    signals, read by the sum of their columns (a split undone). constant: the same value always, moved into biases."""

    channels: tuple[int, ...]
    """The channels that went."""

    leader: int | None
    """For a duplicate, the channel that they were merged into."""

    spread: float
    """Largest disagreement within the class; 0 is exact."""

    cancelled: float
    """For a clique, the largest remainder relative to what was added up."""

    ambiguous: bool
    """Whether an honest network could hold the same: a pruned channel looks just like an injected one."""


@dataclass(frozen=True)
class SpaceReport:
    """What happened to one space."""

    name: str
    before: int
    after: int
    pinned: str | None
    counts: Mapping[str, int]
    """Channels that went, by kind."""

    kept_ambiguous: int
    """Channels kept only because of known widths or equal groups."""

    found: Mapping[str, int] = field(default_factory=dict)
    """Channels that a pass has found to be useless, by the name of the pass. They are among those that went."""

    outcomes: tuple[tuple[SpaceOutcome, Tensor], ...] = field(repr=False, compare=False, default=())

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every judgement, made into objects on request."""
        return tuple(decision for outcome, origin in self.outcomes for decision in _decisions(outcome, origin))

    def to_dict(self, decisions: bool = True) -> dict[str, Any]:
        """As plain data."""
        data: dict[str, Any] = {
            "name": self.name,
            "before": self.before,
            "after": self.after,
            "pinned": self.pinned,
            "counts": dict(self.counts),
            "kept_ambiguous": self.kept_ambiguous,
            "found": dict(self.found),
        }
        if decisions:
            data["decisions"] = [asdict(decision) for decision in self.decisions]
        return data


@dataclass(frozen=True, repr=False)
class RecoveryReport(Shown):
    """What recovery did to a model."""

    method: str
    spaces: tuple[SpaceReport, ...]
    cropped: Mapping[str, tuple[int, ...]]
    """Layers whose kernels were cropped back, with their new kernel sizes."""

    seconds: Mapping[str, float]
    """Time by stage."""

    parameters: tuple[int, int]
    """Number of parameters before and after."""

    tolerance: Tolerance
    """What counted as equal and as zero."""

    agreement: float | None
    """Largest difference between the outputs before and after, relative to the largest output; None if unchecked."""

    idle: tuple[str, ...] = ()
    """Layers of the recovered model that do nothing; `RecoveryResult.lean` leaves them out."""

    def _shown(self) -> Mapping[str, object]:
        return {
            "method": self.method,
            "removed": self.removed,
            "merged": self.merged,
            "parameters": f"{self.parameters[0]:,} to {self.parameters[1]:,}",
            "agreement": self.agreement,
        }

    @property
    def changed(self) -> bool:
        """Whether anything was removed, merged or cropped, or is not read any more."""
        return bool(self.cropped) or any(s.before != s.after or s.found for s in self.spaces)

    @property
    def removed(self) -> int:
        """Channels taken out because they do nothing."""
        kinds = ("zero-in", "zero-out", "clique", "constant")
        return sum(s.counts.get(kind, 0) for s in self.spaces for kind in kinds)

    @property
    def merged(self) -> int:
        """Channels merged into an equal one."""
        return sum(s.counts.get("duplicate", 0) for s in self.spaces)

    def to_dict(self, decisions: bool = True) -> dict[str, Any]:
        """As plain data."""
        return {
            "method": self.method,
            "changed": self.changed,
            "removed": self.removed,
            "merged": self.merged,
            "parameters": list(self.parameters),
            "tolerance": asdict(self.tolerance),
            "agreement": self.agreement,
            "cropped": {name: list(size) for name, size in self.cropped.items()},
            "idle": list(self.idle),
            "seconds": dict(self.seconds),
            "spaces": [space.to_dict(decisions) for space in self.spaces],
        }

    def to_json(self, decisions: bool = True) -> str:
        """As a JSON document."""
        return json.dumps(self.to_dict(decisions), indent=2)

    def table(self) -> str:
        """As a readable table of the spaces that changed."""
        heads = ["space", "before", "after", "zero-in", "zero-out", "clique", "duplicate", "constant"]
        rows = [heads]
        for space in self.spaces:
            if space.before != space.after:
                counts = [str(space.counts.get(kind, 0)) for kind in heads[3:]]
                rows.append([space.name, str(space.before), str(space.after), *counts])
        sizes = [max(len(row[i]) for row in rows) for i in range(len(heads))]
        lines = [
            "  ".join(
                cell.ljust(size) if i == 0 else cell.rjust(size)
                for i, (cell, size) in enumerate(zip(row, sizes, strict=True))
            )
            for row in rows
        ]
        before, after = self.parameters
        lines.append(f"{self.removed} channels removed, {self.merged} merged; {before:,} -> {after:,} parameters")
        return "\n".join(lines)


def space_reports(graph: ChannelGraph, history: History) -> tuple[SpaceReport, ...]:
    """The report on every space."""
    return tuple(
        space_report(s, history.outcomes.get(s.id, ()), history.found.get(s.id, {}), history.origin[s.id].numel())
        for s in graph.spaces
    )


def space_report(
    space: Space, outcomes: Sequence[tuple[SpaceOutcome, Tensor]], found: Mapping[str, int], after: int
) -> SpaceReport:
    """The report on one space.

    Args:
        space: As it was.
        outcomes: What went, step by step, with the channels as they were first numbered.
        found: By pass, how many channels it has found.
        after: The width that is left.
    """
    counts: Counter[str] = Counter()
    for outcome, _ in outcomes:
        counts.update(_counts(outcome))
    return SpaceReport(
        name=space.name,
        before=space.width,
        after=after,
        pinned=space.pinned,
        counts={kind: count for kind, count in counts.items() if count},
        kept_ambiguous=int(outcomes[-1][0].protected.sum()) if outcomes else 0,
        found={name: count for name, count in found.items() if count},
        outcomes=tuple(outcomes) if sum(counts.values()) else (),
    )


def _counts(outcome: SpaceOutcome) -> dict[str, int]:
    """Channels that went, by kind."""
    classes, width = outcome.classes, outcome.dead.numel()
    leader, null = classes.leader.numpy(), classes.null.numpy()
    folded = outcome.folded.numpy()
    follower = (leader != np.arange(width)) & ~null
    gone = (outcome.dead.numpy() | folded)[leader] & ~null
    several = np.bincount(leader[~null], minlength=width)[leader] > 1
    constant = folded[leader] & ~null
    return {
        "zero-in": int(null.sum()),
        "zero-out": int((gone & ~several & ~constant).sum()),
        "clique": int((gone & several & ~constant).sum()),
        "duplicate": int((follower & ~gone).sum()),
        "constant": int(constant.sum()),
    }


def _decisions(outcome: SpaceOutcome, origin: Tensor) -> list[Decision]:
    """Judgements, in the numbers that channels had at first."""
    first = origin.tolist()
    return [
        replace(d, channels=tuple(first[c] for c in d.channels), leader=None if d.leader is None else first[d.leader])
        for d in _judgements(outcome)
    ]


def _judgements(outcome: SpaceOutcome) -> list[Decision]:
    classes = outcome.classes
    found = []
    null = torch.nonzero(classes.null).flatten().tolist()
    if null:
        found.append(Decision("zero-in", tuple(null), None, 0.0, 0.0, True))
    members: dict[int, list[int]] = {}
    for channel, leader in enumerate(classes.leader.tolist()):
        if not bool(classes.null[channel]):
            members.setdefault(leader, []).append(channel)
    for leader, channels in members.items():
        spread = float(classes.spread[channels].max())
        if bool(outcome.folded[leader]):
            found.append(Decision("constant", tuple(channels), None, spread, 0.0, True))
        elif bool(outcome.dead[leader]):
            cancelled = float(outcome.cancelled[leader])
            if len(channels) > 1:
                found.append(Decision("clique", tuple(channels), None, spread, cancelled, False))
            else:
                found.append(Decision("zero-out", tuple(channels), None, 0.0, 0.0, True))
        elif len(channels) > 1:
            merged = tuple(c for c in channels if c != leader)
            found.append(Decision("duplicate", merged, leader, spread, 0.0, False))
    return found
