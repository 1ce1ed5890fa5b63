"""What the owner added to a public model, and how much of it the suspect has.

Two networks that were fine-tuned from one public model contain each other's channels. So suspect and ancestor are both
told in the owner's coordinates, and what is compared is what was added: suspect minus ancestor with owner minus
ancestor. Rows are compared by their directions, in which scale has no part.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from canon.containment.found import Found
from canon.containment.location import Updates
from canon.verify.layout import Step
from canon.verify.portrait import Portrait, directions


def updates(portrait: Portrait, suspect: Mapping[int, Found], ancestor: Mapping[int, Found]) -> Updates:
    """The cosine of what the owner and the suspect added to an ancestor, over all rows that all three have.

    Args:
        portrait: The owner's.
        suspect: By space, what was found of the owner's network in the suspect.
        ancestor: The same in the ancestor.
    """
    together = ours = theirs = size = 0.0
    final = {step.space: step for step in portrait.steps}
    for space, step in final.items():
        here = (suspect[space].accepted.found & ancestor[space].accepted.found).double()[:, None]
        base = _rows(ancestor[space].features, step) * here
        mine = _rows(suspect[space].features, step) * here - base
        yours = _rows(step.features, step) * here - base
        together += float((mine * yours).sum())
        ours += float(mine.square().sum())
        theirs += float(yours.square().sum())
        size += float(base.square().sum())
    cosine = together / (ours * theirs) ** 0.5 if ours > 0 and theirs > 0 else 0.0
    return Updates(cosine, (theirs / size) ** 0.5 if size else 0.0)


def _rows(features: Tensor, step: Step) -> Tensor:
    return directions(features, step.parts)[0].double()
