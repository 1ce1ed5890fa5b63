"""Claims to a recovered model: what a key reads, and the verdict that `canon.judge` gives on it.

A case has four claimants, with one recovery between them: each is judged on the model as it was recovered.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn

from canon import watermarks
from canon.api import Judgement, JudgeOptions, judge
from canon.verify import LayoutKey
from canon.watermarks import Extraction, Key

STRONG: Final = ("proved", "matches")
"""The verdicts that believe a claimant."""


class Hearing:
    """Claims to one recovered model."""

    def __init__(self, recovered: nn.Module, example: Tensor) -> None:
        self.recovered, self.example = recovered, example

    def read(self, key: Key) -> Extraction:
        """What a key reads from the model as it was recovered, in whatever order its channels are."""
        return watermarks.get(key.scheme).extract(self.recovered, key, self.example)

    def hear(self, key: Key, anchor: nn.Module | LayoutKey) -> Judgement:
        """Somebody who says that the model is theirs, with a watermark key and a reference or layout key."""
        reference, layout_key = (None, anchor) if isinstance(anchor, LayoutKey) else (anchor, None)
        return judge(
            self.recovered,
            self.example,
            reference=reference,
            layout_key=layout_key,
            watermark_key=key,
            options=JudgeOptions(recover=False),
        )


def told(found: Judgement) -> str:
    """A verdict in few words: `matches, equal`, `refuted`, `inconclusive`."""
    kind = found.verdict.kind
    return f"{kind}, {found.answers.network.answer}" if kind in STRONG else kind


def similarity(found: Judgement) -> float:
    """What the key read where it counts; 0 where it was refused."""
    return 0.0 if found.mark is None else found.mark.similarity
