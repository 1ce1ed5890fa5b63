"""Kernels, strides and padding, which convolutions and pools give in the same way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.nn import functional

from canon.errors import SIZE_HINT, UnsupportedModelError
from canon.io.onnx.model import Node
from canon.io.onnx.values import Activation

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder


@dataclass(frozen=True)
class Window:
    """How a kernel moves over an input."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    """Padding at the start of every axis."""

    after: tuple[int, ...]
    """Padding at the end."""

    @property
    def even(self) -> bool:
        """Whether the padding is the same on both sides."""
        return self.before == self.after

    @property
    def padding(self) -> tuple[int, ...]:
        """What the layer itself pads."""
        return self.before if self.even else (0,) * len(self.before)

    def pad(self, b: Builder, x: Activation, value: float) -> Activation:
        """The input with what the layer itself cannot pad."""
        if self.even:
            return x
        pads = [p for pair in zip(reversed(self.before), reversed(self.after), strict=True) for p in pair]
        padded: Activation = b.call(functional.pad, x, pads, "constant", value)
        return padded


def window(node: Node, x: Activation, kernel: Sequence[int]) -> Window:
    """A node's window over an input."""
    rank = x.rank - 2
    if not 1 <= rank <= 3 or len(kernel) != rank:
        raise UnsupportedModelError(f"a kernel of {len(kernel)} axes over an input of {x.rank}")
    given = node.integers("kernel_shape")
    if given is not None and tuple(given) != tuple(kernel):
        raise ValueError(f"the kernel has shape {tuple(kernel)}, and kernel_shape says {tuple(given)}")
    stride = tuple(node.integers("strides") or [1] * rank)
    dilation = tuple(node.integers("dilations") or [1] * rank)
    if min(*stride, *dilation, *kernel) < 1 or len(stride) != rank or len(dilation) != rank:
        raise ValueError("a kernel, stride or dilation is not positive")
    before, after = _pads(node, x, kernel, stride, dilation)
    if len(before) != rank or len(after) != rank or min(*before, *after) < 0:
        raise ValueError("the padding does not fit the kernel")
    return Window(tuple(kernel), stride, dilation, before, after)


def _pads(
    node: Node, x: Activation, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    rank, mode = len(kernel), node.text("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        pads = node.integers("pads") or [0] * (2 * rank)
        return tuple(pads[:rank]), tuple(pads[rank:])
    if mode == "VALID":
        return (0,) * rank, (0,) * rank
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"unknown padding '{mode[:40]}'")
    before, after = [], []
    for axis in range(rank):
        size, reach = x.size(2 + axis), dilation[axis] * (kernel[axis] - 1) + 1
        if size is None and stride[axis] > 1:
            raise UnsupportedModelError("padding depends on the size of the input", hint=SIZE_HINT)
        steps = -(-size // stride[axis]) - 1 if size is not None else 0
        total = max(steps * stride[axis] + reach - size, 0) if size is not None else reach - 1
        small, large = total // 2, total - total // 2
        before.append(small if mode == "SAME_UPPER" else large)
        after.append(large if mode == "SAME_UPPER" else small)
    return tuple(before), tuple(after)
