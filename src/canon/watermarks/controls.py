"""Controls: a key is read from models that it cannot have marked.

They are the model itself with other numbers in the places that the key reads: drawn anew with the same moments, moved to
other channels, or with signs changed. Nothing but these places is touched, so a hundred controls cost little more than
one reading. A key that reads its message there reads it anywhere, and is void. How the right bits of all controls
scatter also says how many bits of the message are independent of each other, and how many are right by leaning to one
side; the p-value is taken with both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import torch
from scipy.stats import binom, chi2
from torch import Tensor

from canon.errors import WatermarkError
from canon.watermarks.key import Key
from canon.watermarks.reading import Reader

Kind = Literal["redrawn", "permuted", "flipped"]
KINDS: Final[tuple[Kind, ...]] = ("redrawn", "permuted", "flipped")

COUNT: Final = 128
"""Controls of one verification."""

FALSE_ALARM: Final = 2e-5
"""Chance at most, for each of three reasons, that a key drawn at random is called void."""

LEAST_DISPERSION: Final = 2.0
"""Bits that scatter less than this much wider than independent ones are not called dependent."""

TOO_ALIKE: Final = 0.9
"""A trained key is void if it reads this share of its message on average, or all of it even once."""

MANY_INPUTS: Final = 16
"""From so many input channels on, channels are moved as a whole; below, every entry of a row is."""


@dataclass(frozen=True)
class Controls:
    """What a key reads from models that it cannot have marked."""

    scheme: str
    seed: int
    """Draws the same controls again."""
    kinds: tuple[Kind, ...]
    """What was done to the marked layers, control by control."""
    matched: tuple[int, ...]
    """Right bits of each control."""
    total: int
    """Bits of the message."""
    carries_alone: bool
    """Whether the scheme's bits are fair coins for a wrong key; if not, the p-value is a share of controls."""

    def __post_init__(self) -> None:
        if len(self.matched) < 2 or len(self.kinds) != len(self.matched):
            raise WatermarkError("there must be at least two controls")
        if self.total < 1 or not all(0 <= count <= self.total for count in self.matched):
            raise WatermarkError(f"controls cannot have {max(self.matched)} of {self.total} bits right")

    @property
    def count(self) -> int:
        """Number of controls."""
        return len(self.matched)

    @property
    def largest(self) -> float:
        """Largest share of right bits of any control."""
        return max(self.matched) / self.total

    @property
    def mean(self) -> float:
        """Mean share of right bits; one half where nothing leans."""
        return sum(self.matched) / self.total / self.count

    @property
    def chance(self) -> float:
        """Chance of one bit to be right by luck: the mean share, and at least one half."""
        return max(0.5, self.mean)

    @property
    def dispersion(self) -> float:
        """How much wider right bits scatter than independent ones would, and at least 1: of `total` bits only
        `total / dispersion` say something of their own."""
        centre = self.mean * self.total
        variance = sum((count - centre) ** 2 for count in self.matched) / (self.count - 1)
        return max(1.0, 4 * variance / self.total)

    @cached_property
    def reason(self) -> str | None:
        """Why the key is void, or None."""
        return self._reason_of_fair_coins() if self.carries_alone else self._reason_of_trained()

    @property
    def void(self) -> bool:
        """Whether the key reads its message from models that do not bear it, or has bits that hang together."""
        return self.reason is not None

    def _reason_of_fair_coins(self) -> str | None:
        best, centre = max(self.matched), round(self.mean * self.total)
        if _tail(best, self.total) * self.count <= FALSE_ALARM:
            return f"it reads {best} of {self.total} bits from a model that cannot bear them"
        if _tail(centre, self.total) <= FALSE_ALARM / 3:
            return f"it reads {centre} of {self.total} bits on average from models that cannot bear them"
        # Right bits of controls that share one key may lean together but do not scatter wider than fair coins.
        widest = max(LEAST_DISPERSION, float(chi2.isf(FALSE_ALARM, self.count - 1)) / (self.count - 1))
        if self.dispersion > widest:
            return f"its bits hang together: {self.total} of them say no more than {self.total / self.dispersion:.0f}"
        return None

    def _reason_of_trained(self) -> str | None:
        if self.mean >= TOO_ALIKE:
            return f"it reads {self.mean:.0%} of its bits on average from models that cannot bear them"
        if self.total > 1 and max(self.matched) == self.total:
            return f"it reads all {self.total} bits from a model that cannot bear them"
        return None

    def p_value(self, matched: int, alternatives: int = 1) -> float:
        """Chance of at least `matched` right bits by luck.

        One-sided binomial with the controls' chance of one bit and their number of independent bits, times the places
        that the key chose from. For a scheme that cannot carry a verdict alone it is also no smaller than the share of
        controls that read as much, the model itself counted as one of them.
        """
        if not 0 <= matched <= self.total:
            raise WatermarkError(f"{matched} of {self.total} bits cannot be right")
        bits = max(1, int(self.total / self.dispersion))
        luck = max(1, alternatives) * _tail(matched * bits // self.total, bits, self.chance)
        if not self.carries_alone:
            luck = max(luck, (1 + sum(count >= matched for count in self.matched)) / (1 + self.count))
        return min(1.0, luck)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for evidence."""
        return {
            "scheme": self.scheme,
            "seed": self.seed,
            "count": self.count,
            "kinds": {kind: self.kinds.count(kind) for kind in KINDS if kind in self.kinds},
            "matched": list(self.matched),
            "total": self.total,
            "carries_alone": self.carries_alone,
            "largest": self.largest,
            "mean": self.mean,
            "chance": self.chance,
            "dispersion": self.dispersion,
            "void": self.void,
            "reason": self.reason,
        }


def draws(kinds: Sequence[Kind], count: int, seed: int) -> Iterator[tuple[Kind, torch.Generator]]:
    """Kinds in turn, with a source of randomness for each control."""
    if count < 2 or not kinds:
        raise WatermarkError(f"controls need two readings or more, got {count} of {len(kinds)} kinds")
    generator = torch.Generator().manual_seed(seed)
    for index in range(count):
        yield kinds[index % len(kinds)], generator


class Recorder:
    """Everything that was read from the model itself, so that it runs once for all controls."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self._known: dict[Any, Any] = {}

    def get(self, name: Any, make: Any) -> Any:
        """What is known under this name, made if it is not."""
        if name not in self._known:
            self._known[name] = make()
        return self._known[name]


class ControlReader(Reader):
    """Reads a control: whatever the scheme asks for comes altered."""

    def __init__(self, recorder: Recorder, kind: Kind, generator: torch.Generator) -> None:
        super().__init__(recorder.reader._model, recorder.reader._example)
        self._recorder = recorder
        self._kind = kind
        self._generator = generator

    def parameter(self, module: str, name: str, shape: Sequence[int]) -> Tensor:
        """A module's parameter, altered."""
        asked = (module, name, tuple(shape))
        value = self._recorder.get(asked, lambda: super(ControlReader, self).parameter(module, name, shape))
        return altered(value, self._kind, self._generator)

    def activations(self, widths: Mapping[str, int], images: Tensor) -> list[Tensor]:
        """The modules' outputs, each with other channels."""
        asked = ("activations", tuple(widths.items()), id(images))
        values = self._recorder.get(asked, lambda: super(ControlReader, self).activations(widths, images))
        found = []
        for value in values:
            centre = value.mean(0)
            moved = altered(centre, self._kind, self._generator)
            found.append(value - centre + moved)
        return found

    def norms(self, key: Key, images: Tensor | None = None) -> dict[str, str]:
        """The norm behind every marked layer."""
        return dict(self._recorder.get("norms", lambda: super(ControlReader, self).norms(key, images)))


def altered(value: Tensor, kind: Kind, generator: torch.Generator) -> Tensor:
    """A tensor of the same shape, moments and number of zeros, which bears no mark; the first axis is the outputs."""
    rows = value.reshape(len(value), -1)
    if kind == "flipped":
        return (rows * _signs(rows.shape[0], generator)[:, None] * _signs(rows.shape[1], generator)).view_as(value)
    outputs = torch.randperm(rows.shape[0], generator=generator)
    if kind == "permuted":
        if value.ndim > 1 and value.shape[1] >= MANY_INPUTS:
            inputs = torch.randperm(value.shape[1], generator=generator)
            return value.index_select(0, outputs).index_select(1, inputs)
        inputs = torch.randperm(rows.shape[1], generator=generator)
        return rows.index_select(0, outputs).index_select(1, inputs).view_as(value)
    zeros = value == 0
    drawn = torch.randn(value.shape, generator=generator)
    if not bool(zeros.any()):
        return drawn * value.std(correction=0) + value.mean()
    kept = value[~zeros]
    if not len(kept):
        return value
    places = zeros.flatten()[torch.randperm(value.numel(), generator=generator)].view_as(value)
    return torch.where(places, 0.0, drawn * kept.std(correction=0) + kept.mean())


def _signs(count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (count,), generator=generator) * 2.0 - 1.0


def _tail(matched: int, total: int, chance: float = 0.5) -> float:
    return float(binom.sf(matched - 1, total, chance))
