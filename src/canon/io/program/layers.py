"""From an operation with its weights to the layer of torch.nn that makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor, nn


@dataclass(frozen=True)
class Weight:
    """A tensor of the program, as an operand."""

    name: str


Operands = Mapping[str, Any]
Make = Callable[[Operands, Tensor, int], nn.Module | None]
"""From an operation's operands, its weight and the rank of its input to a layer without numbers, or None."""


def _conv(kind: type[nn.Module]) -> Make:
    def make(given: Operands, weight: Tensor, rank: int) -> nn.Module:
        groups = given["groups"]
        settings = {"stride": given["stride"], "padding": given["padding"], "dilation": given["dilation"]}
        settings = {key: tuple(v) if isinstance(v, list) else v for key, v in settings.items()}
        axes = weight.ndim - 2
        settings = {key: v * axes if isinstance(v, tuple) and len(v) == 1 else v for key, v in settings.items()}
        sizes = (weight.shape[1] * groups, weight.shape[0], tuple(weight.shape[2:]))
        return kind(*sizes, groups=groups, bias=given["bias"] is not None, device="meta", **settings)

    return make


def _conv_transpose(kind: type[nn.Module]) -> Make:
    def make(given: Operands, weight: Tensor, rank: int) -> nn.Module:
        groups, axes = given["groups"], weight.ndim - 2
        settings = {}
        for name in ("stride", "padding", "output_padding", "dilation"):
            value = tuple(given[name])
            settings[name] = value * axes if len(value) == 1 else value
        sizes = (weight.shape[0], weight.shape[1] * groups, tuple(weight.shape[2:]))
        return kind(*sizes, groups=groups, bias=given["bias"] is not None, device="meta", **settings)

    return make


def _linear(given: Operands, weight: Tensor, rank: int) -> nn.Module | None:
    if weight.ndim != 2:
        return None
    return nn.Linear(weight.shape[1], weight.shape[0], bias=given["bias"] is not None, device="meta")


def _batch_norm(given: Operands, weight: Tensor, rank: int) -> nn.Module | None:
    if given["training"] or given["running_mean"] is None or given["bias"] is None:
        return None
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[rank]
    return kind(weight.shape[0], eps=given["eps"], momentum=given["momentum"], device="meta")


def _group_norm(given: Operands, weight: Tensor, rank: int) -> nn.Module | None:
    if given["bias"] is None:
        return None
    return nn.GroupNorm(given["num_groups"], weight.shape[0], eps=given["eps"], device="meta")


def _layer_norm(given: Operands, weight: Tensor, rank: int) -> nn.Module | None:
    shape = tuple(given["normalized_shape"])
    if shape != tuple(weight.shape):
        return None
    return nn.LayerNorm(shape, eps=given["eps"], bias=given["bias"] is not None, device="meta")


def _prelu(given: Operands, weight: Tensor, rank: int) -> nn.Module | None:
    return nn.PReLU(weight.numel(), device="meta") if weight.ndim == 1 else None


_MAKERS: Final[dict[str, Make]] = {
    "conv1d": _conv(nn.Conv1d), "conv2d": _conv(nn.Conv2d), "conv3d": _conv(nn.Conv3d),
    "conv_transpose1d": _conv_transpose(nn.ConvTranspose1d), "conv_transpose2d": _conv_transpose(nn.ConvTranspose2d),
    "conv_transpose3d": _conv_transpose(nn.ConvTranspose3d), "linear": _linear, "batch_norm": _batch_norm,
    "group_norm": _group_norm, "layer_norm": _layer_norm, "prelu": _prelu,
}  # fmt: skip
_RANKS: Final = {f"conv{t}{n}d": n + 2 for n in (1, 2, 3) for t in ("", "_transpose")}
TENSORS: Final = ("weight", "bias", "running_mean", "running_var")


def layer_for(
    name: str, given: Operands, tensors: Mapping[str, Tensor], below: Mapping[str, set[str]], rank: int
) -> tuple[str, nn.Module] | None:
    """Path and layer, if the operation's tensors are those of one layer by their names; else None.

    Args:
        name: The operation.
        given: Its operands by name.
        tensors: The program's tensors.
        below: By path, the names of all tensors below it.
        rank: Number of axes of the operation's input.
    """
    weight = given.get("weight")
    if name not in _MAKERS or not isinstance(weight, Weight) or not weight.name.endswith(".weight"):
        return None
    path = weight.name.removesuffix(".weight")
    for role in TENSORS:
        operand = given.get(role)
        if operand is not None and operand != Weight(f"{path}.{role}"):
            return None
    tensor = tensors[weight.name]
    if not tensor.numel() or (name in _RANKS and tensor.ndim != _RANKS[name]):
        return None
    layer = _MAKERS[name](given, tensor, rank)
    if layer is None:
        return None
    counter = {"num_batches_tracked"}
    expected = {n for n, _ in [*layer.named_parameters(), *layer.named_buffers()]}
    return (path, layer) if below[path] - counter == expected - counter else None
