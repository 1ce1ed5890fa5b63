"""The engine: passes in turn, until none finds anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from canon.recovery.facts import Facts, Subject
from canon.recovery.outcome import SpaceOutcome
from canon.recovery.passes.interface import Pass
from canon.recovery.proof import failing
from canon.recovery.rewriting import Rewrite

ROUNDS: Final = 64
"""More rewrites than this mean that passes undo each other."""


@dataclass(frozen=True, eq=False)
class History:
    """What became of a subject."""

    subject: Subject
    """As it is now."""

    origin: dict[int, Tensor]
    """By space id: the channels of the model as it was that are left."""

    outcomes: dict[int, list[tuple[SpaceOutcome, Tensor]]] = field(default_factory=dict)
    """By space id: what went, one rewrite after the other, and the first names of the channels at that time."""

    found: dict[int, Counter[str]] = field(default_factory=dict)
    """By space id: how many channels each pass has found."""

    rings: Counter[str] = field(default_factory=Counter)
    """By weight: rings of zeros that are gone."""

    changed: dict[str, Tensor] = field(default_factory=dict)
    """Tensors that are not what they were."""

    def after(self, name: str, rewrite: Rewrite) -> History:
        """With one rewrite more."""
        origin, found = dict(self.origin), {space: Counter(count) for space, count in self.found.items()}
        outcomes = {space: list(known) for space, known in self.outcomes.items()}
        for space, outcome in rewrite.outcomes.items():
            outcomes.setdefault(space, []).append((outcome, self.origin[space]))
            origin[space] = self.origin[space][outcome.kept]
        for step in rewrite.steps:
            found.setdefault(step.space, Counter())[name] += step.channels.numel()
        return History(
            rewrite.applied(self.subject), origin, outcomes, found, self.rings + Counter(rewrite.rings),
            {**self.changed, **rewrite.changed},
        )  # fmt: skip


def run(
    subject: Subject,
    passes: Sequence[Pass],
    know: Callable[[Subject], Facts],
    lap: Callable[[str], None] = lambda name: None,
) -> History:
    """Ask every pass in turn, prove what it proposes and apply it, until nothing changes.

    Args:
        subject: The model as it is given.
        passes: In the order in which they are asked.
        know: Facts of a subject.
        lap: Called with the name of what has just been done.
    """
    history = History(subject, {space.id: torch.arange(space.width) for space in subject.graph.spaces})
    version, seen, facts = 0, dict.fromkeys(passes, -1), know(subject)
    while version < ROUNDS and any(seen[step] < version for step in passes):
        for step in passes:
            if seen[step] == version:
                continue
            rewrite = proved(step, history.subject, facts)
            lap("reduce" if rewrite is not None and rewrite.outcomes else "passes")
            if rewrite is not None:
                history = history.after(step.__name__, rewrite)
                if rewrite.changed:
                    version, facts = version + 1, know(history.subject)
            seen[step] = version  # a pass leaves nothing of its own behind
    return history


def proved(step: Pass, subject: Subject, facts: Facts) -> Rewrite | None:
    """What a pass proposes, without the spaces for which it cannot be proved.

    Rewrites that drop channels are proved with the outputs of the whole model.
    """
    while True:
        rewrite = step(subject, facts)
        unproved = None if rewrite is None else failing(subject, facts, rewrite)
        if unproved is None:
            return rewrite
        subject = subject.barred([unproved], f"what {step.__name__} proposed could not be proved")
