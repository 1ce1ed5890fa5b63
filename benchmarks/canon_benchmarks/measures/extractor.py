"""To whom does the extractor of riga21 say the message?

The extractor is a network that learns. How much it learns about models that it does not belong to is a factor in its
loss: 0, where it never sees an unmarked one; 1, where they weigh as much as the own one; 10, as in `canon.watermarks`.
For each, small networks are trained and marked on the digits, and the message is read from the owner's model, from that
model disguised and then recovered alone, its channels in whatever order they are (the paper's Tier 2), and from
strangers: networks that were trained without a mark, and networks that were not trained at all.
"""

from __future__ import annotations

import functools
from typing import Final

from torch import nn

from canon import watermarks
from canon.attacks import attack
from canon.bench.lab import Setup
from canon.bench.measures.sheet import Sheet
from canon.recovery import recover
from canon.watermarks import Embedding, Message, Scheme, TrainOptions
from canon.watermarks.interface import Target
from canon.watermarks.riga21 import Riga, Riga21
from canon.watermarks.train import MarkState, train
from canon_benchmarks.cases import Extractor
from canon_benchmarks.measures.wrong import network, small_data

BITS: Final = 128
STRANGERS: Final = 4
OPTIONS: Final = TrainOptions(epochs=12, batch_size=32, cooldown=2, accuracy_goal=0.9)
ELSEWHERE: Final = 10_000
"""Added to a seed for what belongs to somebody else."""


def extractor_that_weighs(weight: float) -> Scheme:
    """The scheme with an extractor that weighs unmarked vectors so much."""

    class Weighing(Riga):
        others = weight

    class Weighed(Riga21):
        def prepare(self, target: Target) -> Embedding:
            return Weighing(target)

    return Weighed()


@functools.cache
def _stranger(seed: int) -> nn.Module:
    """A network that was trained without a mark."""
    model = network(ELSEWHERE + seed)
    train(
        model, small_data(), Embedding(), OPTIONS, inspect=lambda _model: MarkState(similarity=1.0, settled=True),
        seed=ELSEWHERE + seed,
    )  # fmt: skip
    return model.eval()


def measure_extractor(case: Extractor, setup: Setup, sheet: Sheet) -> None:
    """Mark one network, and read the message from it and from others."""
    scheme, data, seed = extractor_that_weighs(case.weight), small_data(), case.seed
    marked = scheme.embed(network(seed), data, message=Message.random(seed, BITS), seed=seed, options=OPTIONS)
    example = data.images_at(data.train_images[:2], "cpu")
    hidden = attack(marked.model, example, "nso_zero", ratio=0.2, seed=seed).model
    read = watermarks.get("riga21").similarity
    sheet.note(
        own=read(marked.model, marked.key),
        recovered_alone=read(recover(hidden, example).model, marked.key),
        strangers=[read(_stranger(at), marked.key) for at in range(STRANGERS)],
        untrained=[read(network(2 * ELSEWHERE + at), marked.key) for at in range(STRANGERS)],
    )
