"""Controls: a key is read from models that it cannot have marked.

They are the model itself with other numbers in the places that the key reads: drawn anew with the same moments, moved
to other channels, or with signs changed. Nothing but these places is touched, so a hundred controls cost little more
than one reading. In one control all tensors of a shape are moved, and negated, by the same draws: layers that share
a weight, or began with the same one, stay alike, so that a key gains nothing from reading them twice.
Moved channels stay within the parts that a packed layer may have, because all networks have these in one order.

A key that reads its message there reads it anywhere, and is void. How the right bits of all controls scatter also says
how many bits of the message are independent of each other, and how many are right by leaning to one side; the p-value
is taken with both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import e as E
from typing import Any, Final, Literal

import numpy as np
import torch
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

LEAST_DISPERSION: Final = 4.0
"""Bits that scatter less than this much wider than independent ones do not make a key void: small layers have such
bits, and the p-value counts only the independent ones."""

TOO_ALIKE: Final = 0.9
"""A trained key is void if it reads this share of its message on average, or all of it even once."""

NOISE_SPARE: Final = 1 << 18
"""In how many places a stretch of noise may begin, at least."""

MANY_INPUTS: Final = 16
"""From so many input channels on, channels are moved as a whole; below, every entry of a row is."""


PARTS: Final = (12, 6, 4, 3, 2)
"""Into how many equal parts an axis of channels may be packed: queries, keys and values, a gate and its values, two
branches. All networks have such parts in one order, and they may differ in all of them, so channels stay in theirs."""

LEAST_PART: Final = 64
"""Fewer channels would stay where they are too often."""


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
        if len(self.kinds) != len(self.matched) or any(self.kinds.count(kind) < 2 for kind in set(self.kinds)):
            raise WatermarkError("there must be at least two controls of each kind")
        if not self.matched:
            raise WatermarkError("there are no controls")
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

    @cached_property
    def means(self) -> dict[Kind, float]:
        """Mean share of right bits by kind."""
        shares, kinds = np.array(self.matched) / self.total, np.array(self.kinds)
        return {kind: float(shares[kinds == kind].mean()) for kind in dict.fromkeys(self.kinds)}

    @property
    def chance(self) -> float:
        """Chance of one bit to be right by luck: the largest mean share of any kind, and at least one half."""
        return max(0.5, *self.means.values())

    @cached_property
    def dispersion(self) -> float:
        """How much wider right bits scatter than independent ones would, and at least 1: of `total` bits only
        `total / dispersion` say something of their own."""
        centres = self.total * np.array([self.means[kind] for kind in self.kinds])
        squares = float(((np.array(self.matched) - centres) ** 2).sum())
        return max(1.0, 4 * squares / (self.count - len(self.means)) / self.total)

    @cached_property
    def reason(self) -> str | None:
        """Why the key is void, or None."""
        return self._reason_of_fair_coins() if self.carries_alone else self._reason_of_trained()

    @property
    def void(self) -> bool:
        """Whether the key reads its message from models that do not bear it, or has bits that hang together."""
        return self.reason is not None

    def _reason_of_fair_coins(self) -> str | None:
        best, centre = max(self.matched), round(self.chance * self.total)
        if _tail(best, self.total) * self.count <= FALSE_ALARM:
            return f"it reads {best} of {self.total} bits from a model that cannot bear them"
        if _tail(centre, self.total) * len(self.means) * E <= FALSE_ALARM:  # means of numbers that hang together
            return f"it reads {centre} of {self.total} bits on average from models that cannot bear them"
        # Right bits of controls that share one key may lean together but do not scatter wider than fair coins.
        freedom = self.count - len(self.means)
        from scipy.stats import chi2  # takes a second to import

        widest = max(LEAST_DISPERSION, float(chi2.isf(FALSE_ALARM, freedom)) / freedom)
        if self.dispersion > widest:
            return f"its bits hang together: {self.total} of them say no more than {self.total / self.dispersion:.0f}"
        return None

    def _reason_of_trained(self) -> str | None:
        if self.chance >= TOO_ALIKE:
            return f"it reads {self.chance:.0%} of its bits on average from models that cannot bear them"
        if self.total > 1 and max(self.matched) == self.total:
            return f"it reads all {self.total} bits from a model that cannot bear them"
        return None

    def p_value(self, matched: int, alternatives: int = 1) -> float:
        """Chance of at least `matched` right bits by luck.

        One-sided binomial with the controls' chance of one bit and their number of independent bits, times the places
        that the key chose from. For a scheme whose bits are no fair coins it is also no smaller than the share of
        controls that read as much, the model itself counted as one of them.
        """
        if not 0 <= matched <= self.total:
            raise WatermarkError(f"{matched} of {self.total} bits cannot be right")
        bits = max(1, int(self.total / self.dispersion))
        fewer = _tail(matched * bits // self.total, bits, self.chance)
        luck = max(1, alternatives) * max(fewer, _tail(matched, self.total))
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
            "means": dict(self.means),
            "chance": self.chance,
            "dispersion": self.dispersion,
            "void": self.void,
            "reason": self.reason,
        }


def readers(reader: Reader, kinds: Sequence[Kind], count: int, seed: int) -> Iterator[tuple[Kind, ControlReader]]:
    """Readers of that many controls, of all kinds in turn."""
    if not kinds or count < 2 * len(kinds):
        raise WatermarkError(f"{count} controls of {len(kinds)} kinds are too few", hint="Ask for two of each or more")
    generator = torch.Generator().manual_seed(seed)
    recorder = Recorder(reader, generator)
    for index in range(count):
        kind = kinds[index % len(kinds)]
        yield kind, ControlReader(recorder, kind, int(torch.randint(1 << 48, (1,), generator=generator)))


class Recorder:
    """What was read from the model itself, so that it runs once for all controls, and the noise that they share."""

    def __init__(self, reader: Reader, generator: torch.Generator) -> None:
        self.reader = reader
        self.generator = generator
        self._known: dict[Any, Any] = {}
        self._noise = torch.empty(0)

    def get(self, name: Any, make: Callable[[], Any]) -> Any:
        """What is known under this name, made if it is not."""
        if name not in self._known:
            self._known[name] = make()
        return self._known[name]

    def noise(self, count: int) -> Tensor:
        """Gaussian numbers: a stretch of a long row, from a place of its own, because drawing millions takes long."""
        if len(self._noise) < count + NOISE_SPARE:
            self._noise = torch.randn(count + NOISE_SPARE, generator=self.generator)
        start = int(torch.randint(len(self._noise) - count, (1,), generator=self.generator))
        return self._noise[start : start + count]


class ControlReader(Reader):
    """Reads a control: whatever the scheme asks for comes altered."""

    def __init__(self, recorder: Recorder, kind: Kind, seed: int) -> None:
        super().__init__(recorder.reader._model, recorder.reader._example)
        self._recorder = recorder
        self._kind = kind
        self._seed = seed

    def parameter(self, module: str, name: str, shape: Sequence[int]) -> Tensor:
        """A module's parameter, altered."""
        asked = (module, name, tuple(shape))
        value = self._recorder.get(asked, lambda: super(ControlReader, self).parameter(module, name, shape))
        return altered(value, self._kind, self._recorder, self._seed)

    def activations(self, widths: Mapping[str, int], images: Tensor) -> list[Tensor]:
        """The modules' outputs, each with other channels."""
        asked = ("activations", tuple(widths.items()), id(images))
        values = self._recorder.get(asked, lambda: super(ControlReader, self).activations(widths, images))
        # The recorder must hold the centres as well: moments are kept by where a tensor lies.
        centres = self._recorder.get(("centres", *asked), lambda: [value.mean(0) for value in values])
        return [
            value - centre + altered(centre, self._kind, self._recorder, self._seed)
            for value, centre in zip(values, centres, strict=True)
        ]

    def norms(self, key: Key, images: Tensor | None = None) -> dict[str, str]:
        """The norm behind every marked layer."""
        return dict(self._recorder.get("norms", lambda: super(ControlReader, self).norms(key, images)))

    def places(self, key: Key, images: Tensor) -> dict[str, str]:
        """Where the units of every marked layer are read."""
        return dict(self._recorder.get("places", lambda: super(ControlReader, self).places(key, images)))


def altered(value: Tensor, kind: Kind, source: Recorder, seed: int) -> Tensor:
    """A tensor of the same shape, moments and number of zeros, which bears no mark; the first axis is the outputs.

    The same seed moves and negates every tensor of a shape in the same way.
    """
    generator = torch.Generator().manual_seed(seed)
    if kind == "flipped":
        rows = value.reshape(len(value), -1)
        return (rows * _signs(rows.shape[0], generator)[:, None] * _signs(rows.shape[1], generator)).view_as(value)
    if kind == "permuted":
        return _permuted(value, generator)
    mean, deviation, zeros = source.get(("moments", value.data_ptr(), value.shape), lambda: _moments(value))
    drawn: Tensor = source.noise(value.numel()).view_as(value) * deviation + mean
    return drawn if zeros is None else drawn * _permuted(zeros, generator)


def _permuted(value: Tensor, generator: torch.Generator) -> Tensor:
    """Other places for the outputs, and for the inputs: whole channels where there are many, else every entry."""
    if value.ndim < 2:
        return value.index_select(0, _order(len(value), generator))
    outputs = torch.randperm(len(value), generator=generator)  # not in parts: a bit may be the mean of many rows
    if value.shape[1] >= MANY_INPUTS:
        return value.index_select(0, outputs).index_select(1, _order(value.shape[1], generator))
    rows = value.reshape(len(value), -1).index_select(0, outputs)
    return rows.index_select(1, torch.randperm(rows.shape[1], generator=generator)).view_as(value)


def _order(count: int, generator: torch.Generator) -> Tensor:
    """Channels in another order, each within its part of the axis."""
    parts = next((parts for parts in PARTS if count % parts == 0 and count // parts >= LEAST_PART), 1)
    starts = torch.arange(0, count, count // parts)
    return torch.cat([start + torch.randperm(count // parts, generator=generator) for start in starts])


def _moments(value: Tensor) -> tuple[float, float, Tensor | None]:
    """Mean and deviation of what is not zero, and where it lies; None where nothing is zero."""
    kept = value[value != 0]
    if not len(kept):
        return 0.0, 0.0, None
    zeros = None if len(kept) == value.numel() else (value != 0).float()
    return float(kept.mean()), float(kept.std(correction=0)), zeros


def _signs(count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (count,), generator=generator) * 2.0 - 1.0


def _tail(matched: int, total: int, chance: float = 0.5) -> float:
    from scipy.stats import binom

    return float(binom.sf(matched - 1, total, chance))
