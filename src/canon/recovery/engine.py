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
from canon.recovery.proposal import Proposal

ROUNDS: Final = 64
"""More proposals than this mean that passes undo each other."""


@dataclass(frozen=True, eq=False)
class History:
    """What became of a subject."""

    subject: Subject
    """As it is now."""

    origin: dict[int, Tensor]
    """By space id: the channels of the model as it was that are left."""

    outcomes: dict[int, list[tuple[SpaceOutcome, Tensor]]] = field(default_factory=dict)
    """By space id: what went, one proposal after the other, and the first names of the channels at that time."""

    found: dict[int, Counter[str]] = field(default_factory=dict)
    """By space id: how many channels each pass has found."""

    changed: dict[str, Tensor] = field(default_factory=dict)
    """Tensors that are not what they were."""

    noise: float = 0.0
    """The most that some change has left of what cancels."""

    def after(self, name: str, proposal: Proposal) -> History:
        """With one proposal more."""
        origin, found = dict(self.origin), {space: Counter(count) for space, count in self.found.items()}
        outcomes = {space: list(known) for space, known in self.outcomes.items()}
        for space, outcome in proposal.outcomes.items():
            outcomes.setdefault(space, []).append((outcome, self.origin[space]))
            origin[space] = self.origin[space][outcome.kept]
        for change in proposal.changes:
            found.setdefault(change.space, Counter())[name] += change.channels.numel()
            if change.order is not None:
                origin[change.space] = origin[change.space][change.order]
        changed = {**self.changed, **proposal.changed}
        noise = max([self.noise, *(change.noise for change in proposal.changes)])
        return History(proposal.applied(self.subject), origin, outcomes, found, changed, noise)


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
            proposal = proved(step, history.subject, facts)
            lap("reduce" if proposal is not None and proposal.outcomes else "passes")
            if proposal is not None:
                history = history.after(step.__name__, proposal)
                if proposal.changed:
                    version, facts = version + 1, know(history.subject)
            again = proposal is not None and proposal.again
            seen[step] = version - 1 if again else version  # mostly a pass leaves nothing of its own behind
    return history


def proved(step: Pass, subject: Subject, facts: Facts) -> Proposal | None:
    """What a pass proposes, without the spaces for which it cannot be proved.

    What drops channels is proved with the outputs of the whole model.
    """
    while True:
        proposal = step(subject, facts)
        unproved = None if proposal is None else failing(subject, facts, proposal)
        if unproved is None:
            return proposal
        subject = subject.barred([unproved], f"what {step.__name__} proposed could not be proved")
