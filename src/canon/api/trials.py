"""Schemes and attacks on trial: do they keep their promises, and what survives of whom.

Everything runs on one small network and scikit-learn's digits, so that a trial takes seconds on any machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from canon.api.recovering import recover
from canon.attacks import attack
from canon.containment import locate
from canon.errors import AttackError, CanonError
from canon.graph import trace
from canon.verify import align
from canon.watermarks import EmbedResult, Scheme, TrainOptions
from canon.watermarks.conformance import Trial, check
from canon.watermarks.data import Dataset

ATTACKS: Final = ("nso_zero", "nso_clique", "nso_split", "mix-opseq")
"""What a mark must survive: the paper's primitives, and a mix of them."""

RATIO: Final = 0.3
SEEDS: Final = 3
TRAINING: Final = TrainOptions(epochs=40, batch_size=32, cooldown=1, accuracy_goal=0.9)
LEAST: Final = {"riga21": 0.95}
"""Similarity that a marked model must reach, where that is not 1."""


class SmallNetwork(nn.Module):
    """Three convolutions with norms and a classifier: wide enough for every scheme's message."""

    def __init__(self, seed: int = 0, extra: int = 0) -> None:
        super().__init__()
        first, second, third = 32 + extra, 64 + extra, 128 + extra
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.conv1 = nn.Conv2d(3, first, 3, stride=2, padding=1)
            self.norm1 = nn.BatchNorm2d(first)
            self.conv2 = nn.Conv2d(first, second, 3, stride=2, padding=1, bias=False)
            self.norm2 = nn.BatchNorm2d(second)
            self.conv3 = nn.Conv2d(second, third, 3, padding=1, bias=False)
            self.norm3 = nn.BatchNorm2d(third)
            self.fc = nn.Linear(third, 10)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Scores of ten classes."""
        x = torch.relu(self.norm1(self.conv1(images)))
        x = torch.relu(self.norm2(self.conv2(x)))
        x = torch.relu(self.norm3(self.conv3(x)))
        scores: Tensor = self.fc(x.mean((2, 3)))
        return scores


def digits() -> Dataset:
    """Some of the digits, at 16×16."""
    from canon import zoo

    return zoo.dataset("digits").limited(480, 120).resized(16)


def conforms(scheme: Scheme) -> EmbedResult:
    """Mark the small network and check every promise of the interface.

    Raises:
        ConformanceError: One of them is broken.
    """
    return check(
        Trial(
            scheme,
            SmallNetwork(),
            digits(),
            SmallNetwork(seed=3, extra=7),
            options=TRAINING,
            least_similarity=LEAST.get(scheme.name, 1.0),
            chance=0.2,
        )
    )


@dataclass(frozen=True)
class Survival:
    """What is read of a mark, as a share of its bits, under each attack."""

    scheme: str
    clean: float
    attacked: dict[str, float]
    """As the extractor reads it, by index."""

    recovered: dict[str, float]
    """After recovery and alignment with the owner's model."""


def survival(scheme: Scheme, marked: EmbedResult | None = None) -> Survival:
    """Attack the marked network, recover it, align it, and read the mark each time."""
    made = marked or scheme.embed(SmallNetwork(), digits(), seed=1, options=TRAINING)
    example, read = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0)), {}
    for name in ATTACKS:
        hidden = attack(made.model, example, [name], ratio=RATIO, seed=1).model
        again = align(recover(hidden, example).model, made.model, example).model
        read[name] = [scheme.similarity(one, made.key) for one in (hidden, again)]
    clean = scheme.similarity(made.model, made.key)
    first, second = ({name: both[side] for name, both in read.items()} for side in (0, 1))
    return Survival(scheme.name, clean, first, second)


@dataclass(frozen=True)
class Disguise:
    """What an attack does to the small network, over several seeds, in float64."""

    attack: str
    drift: float
    """Largest change of an output, relative to the largest output."""

    growth: float
    """Parameters afterwards, relative to before."""

    recovered: bool
    """Whether recovery brings all shapes back, from the model alone."""

    coverage: float
    """Least share of the owner's channels that is found with the owner's model at hand."""

    answer: str
    """The weakest answer of `canon.locate`."""


def disguise(name: str, ratio: float = RATIO, seeds: Sequence[int] = range(SEEDS)) -> Disguise:
    """Attack the small network, undo it, and look for it.

    Raises:
        AttackError: There is no such attack, or the network does not allow it.
    """
    example = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drift, growth, coverage, recovered, answers = 0.0, 0.0, 1.0, True, []
    for seed in seeds:
        owner = _settled(SmallNetwork(seed), example)
        hidden = attack(owner, example, [name], ratio=ratio, seed=seed).model
        drift = max(drift, _change(owner, hidden, example))
        growth = max(growth, _parameters(hidden) / _parameters(owner))
        recovered = recovered and _shapes(_recovered(hidden, example), example) == _shapes(owner, example)
        found = locate(hidden, owner, example)
        coverage = min(coverage, found.coverage)
        answers.append(found.answer)
    order = ("contained", "derived", "not decided", "unrelated")
    return Disguise(name, drift, growth, recovered, coverage, max(answers, key=order.index))


def _settled(model: nn.Module, example: Tensor) -> nn.Module:
    """With statistics in its norms, as a trained network has them."""
    model.double().train()
    with torch.no_grad():
        for _ in range(8):
            model(example)
    return model.eval()


def _recovered(model: nn.Module, example: Tensor) -> nn.Module:
    try:
        return recover(model, example).model
    except CanonError:
        return model


def _change(before: nn.Module, after: nn.Module, example: Tensor) -> float:
    with torch.no_grad():
        old, new = before(example), after(example)
    if old.shape != new.shape:
        raise AttackError("the attacked model gives outputs of another shape")
    return float((old - new).abs().max() / old.abs().max())


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _shapes(model: nn.Module, example: Tensor) -> dict[str, tuple[int, ...]]:
    tensors = dict(model.named_parameters())
    return {linear.weight: tuple(tensors[linear.weight].shape) for linear in trace(model, example).maps}
