"""Claims to a recovered model: what a key reads, and the verdict that `canon.judge` would give on it.

`canon.judge` does all of the way for one claimant. A case has four, with one recovery between them.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from canon import watermarks
from canon.bench.measures.attacked import TOLERANCE, Certified
from canon.graph import trace
from canon.verify import layer_spaces
from canon.verify.mark import Mark, Tier2
from canon.verify.verdict import Findings, Proved, Verdict, decide
from canon.watermarks import Extraction, Key


@dataclass(frozen=True, eq=False)
class Claim:
    """Somebody who says that the suspect is theirs."""

    key: Key
    """The watermark key they bring."""

    clean: float
    """What it reads in the model they say they own."""

    attacked: float
    """What it reads in the suspect as it was found."""


class Hearing:
    """Claims to one recovered model."""

    def __init__(self, recovered: nn.Module, example: Tensor) -> None:
        self.recovered = recovered
        self._spaces = layer_spaces(trace(recovered, example))

    def read(self, key: Key) -> Extraction:
        """What a key reads from the model as it was recovered, in whatever order its channels are."""
        return watermarks.get(key.scheme).extract(self.recovered, key)

    def hear(self, claim: Claim, found: Certified, *, with_reference: bool = True) -> tuple[Mark, Verdict]:
        """The mark as it is read where it counts, and the verdict."""
        scheme = watermarks.get(claim.key.scheme)
        spaces = {space for layer in claim.key.layers for space in self._spaces.get(layer, ())}
        alignment = found.alignment
        if alignment is not None and alignment.established_at(spaces):
            mark = Mark.of(scheme.extract(alignment.model, claim.key), "aligned", spaces)
        else:
            mark = Mark.of(self.read(claim.key), "recovered", spaces)
        tier2 = Tier2(claim.clean, claim.attacked, mark.similarity)
        certificate = found.certificate if with_reference else None
        return mark, decide(Findings(alignment, certificate, mark, tier2, tolerance=TOLERANCE))


def told(verdict: Verdict) -> str:
    """A verdict in few words: `proved, tier 1`, `refuted`, `inconclusive`."""
    return f"proved, tier {verdict.tier}" if isinstance(verdict, Proved) else type(verdict).__name__.lower()
