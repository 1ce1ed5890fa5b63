"""What a name of the graph stands for while it is built: numbers, an activation, or sizes of activations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx


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
        if self.tensor.ndim > 1 or self.tensor.is_floating_point() or self.tensor.numel() > 1024:
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

    def constant(self) -> Constant | None:
        """The same as numbers; None where the input decides."""
        numbers = [item if isinstance(item, int) else item.number for item in self.items]
        if any(number is None for number in numbers):
            return None
        return Constant(torch.tensor(numbers[0] if self.scalar else numbers, dtype=torch.int64))


Value = Constant | Activation | Sizes
