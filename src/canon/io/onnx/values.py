"""What a name of the graph stands for while it is built: numbers, an activation, or sizes of activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, fx

from canon._untrusted import LARGEST
from canon.errors import UnsupportedModelError

MOST_SIZES: Final = 1024
"""Sizes in one list."""


@dataclass(frozen=True, eq=False)
class Constant:
    """A tensor that is known when the file is read."""

    tensor: Tensor
    name: str = ""
    """Its name, where it stands in the file as it is."""

    @property
    def rank(self) -> int:
        """Number of axes."""
        return self.tensor.ndim

    def integers(self) -> list[int]:
        """A list of whole numbers, as shapes, axes and the like are given."""
        if self.tensor.ndim > 1 or self.tensor.is_floating_point() or self.tensor.numel() > MOST_SIZES:
            raise ValueError(f"expected a short list of whole numbers, got shape {tuple(self.tensor.shape)}")
        return [int(v) for v in self.tensor.reshape(-1).tolist()]


@dataclass(frozen=True, eq=False)
class Activation:
    """A value that depends on the model's inputs."""

    node: fx.Node
    hints: tuple[Tensor, Tensor]
    """Shape and type on the meta device, for two choices of the sizes that the file leaves open."""

    @property
    def rank(self) -> int:
        """Number of axes."""
        return self.hints[0].ndim

    @property
    def dtype(self) -> torch.dtype:
        """Element type."""
        return self.hints[0].dtype

    def size(self, axis: int) -> int | None:
        """The size of an axis; None where the file leaves it open."""
        first, second = (int(hint.shape[axis]) for hint in self.hints)
        return first if first == second else None


@dataclass(frozen=True, eq=False)
class Size:
    """The size of an activation's axis, or a number computed from such: it may change with the input or the width."""

    node: fx.Node
    hints: tuple[int, int]

    @property
    def number(self) -> int | None:
        """The number, where it does not depend on the input."""
        return self.hints[0] if self.hints[0] == self.hints[1] else None


@dataclass(frozen=True, eq=False)
class Sizes:
    """A list of sizes, or a single one: what the graph computes shapes with."""

    items: tuple[int | Size, ...]
    scalar: bool = False

    def __post_init__(self) -> None:
        numbers = [number for item in self.items for number in (item.hints if isinstance(item, Size) else (item,))]
        if len(self.items) > MOST_SIZES or any(abs(number) > LARGEST for number in numbers):
            raise ValueError("sizes are computed that are too many or too large for any shape")

    def constant(self) -> Constant | None:
        """The same as numbers; None where the input decides."""
        numbers = [item if isinstance(item, int) else item.number for item in self.items]
        if any(number is None for number in numbers):
            return None
        return Constant(torch.tensor(numbers[0] if self.scalar else numbers, dtype=torch.int64))


@dataclass(frozen=True, eq=False)
class Measured:
    """The scale or zero point that a file measures from an activation while it runs."""

    source: Activation
    factor: Tensor | None = None
    """What a scale was multiplied with since."""


@dataclass(frozen=True, eq=False)
class Quantized:
    """An activation that the file holds as whole numbers. Here it stays the real numbers that these stand for."""

    real: Activation
    scale: Constant | Measured
    zero: Constant | Measured | None


@dataclass(frozen=True, eq=False)
class Product:
    """A linear map of whole numbers by whole numbers: a layer, once it is known what they count in."""

    whole: Quantized
    make: Callable[[Tensor], Activation]
    """The layer's result, given the scale of the weights."""


@dataclass(frozen=True)
class Blocks:
    """How a file stores channels in blocks."""

    size: int
    """Channels that stand together."""

    channels: Mapping[str, int]
    """How many channels a value has, without those that fill up its last block."""


def scaled(x: Value, y: Value) -> Measured | Activation:
    """A product with a scale that is measured, or of a map that waits for its scale."""
    for first, second in ((x, y), (y, x)):
        if isinstance(first, Measured) and isinstance(second, Constant):
            return Measured(first.source, second.tensor if first.factor is None else first.factor * second.tensor)
        if isinstance(first, Product) and isinstance(second, Measured) and first.whole.real is second.source:
            return first.make(torch.ones(()) if second.factor is None else second.factor)
        if isinstance(first, Product) and isinstance(second, Constant) and isinstance(first.whole.scale, Constant):
            return first.make(second.tensor / first.whole.scale.tensor)
    raise UnsupportedModelError("whole numbers are multiplied with what is not their scale")


Value = Constant | Activation | Sizes | Quantized | Measured | Product
