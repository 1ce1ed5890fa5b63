"""To whom does the extractor of riga21 say the message? `python -m canon_benchmarks riga_strangers --out FILE.json`.

The extractor is a network that learns. How much it learns about models that it does not belong to is a factor in its
loss: 0, where it never sees an unmarked one; 1, where they weigh as much as the own one; 10, as in `canon.watermarks`.
For each, small networks are trained and marked on the digits, and the message is read from the owner's model, from that
model disguised and then recovered alone, its channels in whatever order they are (the paper's Tier 2), and from
strangers: networks that were trained without a mark, and networks that were not trained at all.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from canon import watermarks
from canon._environment import environment
from canon._files import write_text
from canon.attacks import attack
from canon.recovery import recover
from canon.watermarks import Dataset, Embedding, Message, Scheme, TrainOptions
from canon.watermarks.interface import Target
from canon.watermarks.riga21 import Riga, Riga21
from canon.watermarks.train import MarkState, train
from canon_benchmarks.wrong_keys import network, small_data

WEIGHTS: Final = (0.0, 1.0, 10.0)
BITS: Final = 128
SEEDS: Final = 3
STRANGERS: Final = 4
OPTIONS: Final = TrainOptions(epochs=12, batch_size=32, cooldown=2, accuracy_goal=0.9)
ELSEWHERE: Final = 10_000
"""Added to a seed for what belongs to somebody else."""


@dataclass(frozen=True)
class Row:
    """What one extractor reads."""

    weight: float
    """Of unmarked vectors in its loss."""

    seed: int
    own: float
    """Similarity on the owner's model."""

    recovered_alone: float
    """On that model after a disguise and recovery, unaligned."""

    strangers: tuple[float, ...]
    """On trained models without a mark."""

    untrained: tuple[float, ...]


def extractor_that_weighs(weight: float) -> Scheme:
    """The scheme with an extractor that weighs unmarked vectors so much."""

    class Weighing(Riga):
        others = weight

    class Weighed(Riga21):
        def prepare(self, target: Target) -> Embedding:
            return Weighing(target)

    return Weighed()


def stranger(data: Dataset, seed: int) -> torch.nn.Module:
    """A network that was trained without a mark."""
    model = network(ELSEWHERE + seed)
    train(
        model, data, Embedding(), OPTIONS, inspect=lambda _model: MarkState(similarity=1.0, settled=True),
        seed=ELSEWHERE + seed,
    )  # fmt: skip
    return model.eval()


def measure(weight: float, seed: int, data: Dataset, strangers: Sequence[torch.nn.Module]) -> Row:
    """Mark one network, and read the message from it and from others."""
    scheme = extractor_that_weighs(weight)
    marked = scheme.embed(network(seed), data, message=Message.random(seed, BITS), seed=seed, options=OPTIONS)
    example = data.images_at(data.train_images[:2], "cpu")
    hidden = attack(marked.model, example, "nso_zero", ratio=0.2, seed=seed).model
    read = watermarks.get("riga21").similarity
    bare = recover(hidden, example).model
    return Row(
        weight,
        seed,
        read(marked.model, marked.key),
        read(bare, marked.key),
        tuple(read(model, marked.key) for model in strangers),
        tuple(read(network(2 * ELSEWHERE + at), marked.key) for at in range(STRANGERS)),
    )


def measure_all(seeds: int = SEEDS, strangers: int = STRANGERS) -> dict[str, Any]:
    """Every weight and seed, as a JSON object."""
    data = small_data()
    others = [stranger(data, at) for at in range(strangers)]
    rows = [measure(weight, seed, data, others) for weight in WEIGHTS for seed in range(seeds)]
    return {"bits": BITS, "rows": [vars(row) for row in rows], "environment": environment() | {"device": "cpu"}}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write a JSON file."""
    parser = argparse.ArgumentParser(prog="python -m canon_benchmarks riga_strangers", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results/riga_strangers.json"))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    chosen = parser.parse_args(arguments)
    write_text(chosen.out, json.dumps(measure_all(chosen.seeds), indent=1) + "\n", force=True)
    return 0
