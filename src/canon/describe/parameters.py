"""Per-channel parameters of a model, read once: as float64 on the host, where decisions are made.

They are a small part of a model (norms, biases, depthwise kernels), but a norm behind a concatenation belongs to many
spaces, and every space is looked at more than once. So each tensor is converted once, each norm is written as `a·x + b`
once, and spaces take their stretch of it. From a GPU all of them come in one transfer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from canon.describe.arrays import Array
from canon.graph import ChannelGraph, Space, Stage


@dataclass(frozen=True, eq=False)
class Affine:
    """A norm as `factor·x + shift`."""

    factor: Array
    shift: Array
    mass: Array
    """Sum of the magnitudes in `shift`."""


class Parameters:
    """The parameters of all stages of a graph."""

    def __init__(self, graph: ChannelGraph, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._host: dict[str, Array] = {}
        self._affine: dict[tuple[object, ...], Affine] = {}
        names = dict.fromkeys(name for s in graph.spaces for stage in s.stages for name in stage.params.values())
        far = [name for name in names if tensors[name].device.type != "cpu"]
        if far:
            flat = [tensors[name].detach().double().flatten() for name in far]
            for name, part in zip(far, torch.cat(flat).cpu().split([f.numel() for f in flat]), strict=True):
                self._host[name] = part.view(tensors[name].shape).numpy()

    def array(self, name: str) -> Array:
        """A tensor as float64 on the host."""
        if name not in self._host:
            self._host[name] = self._tensors[name].detach().double().cpu().numpy()
        return self._host[name]

    def of(self, stage: Stage, space: Space) -> dict[str, Array]:
        """A stage's parameters for one space by role, each `width x entries`."""
        found = {}
        for role, name in stage.params.items():
            axis = 0 if stage.kind != "shift" and role == "bias" else stage.axis
            whole = np.moveaxis(self.array(name), axis, 0)
            part = whole[stage.offset : stage.offset + space.width * stage.repeat]
            found[role] = part.reshape(space.width, -1)
        return found

    def affine(self, stage: Stage, space: Space) -> Affine:
        """A norm for one space, each figure `width x repeat`."""
        key = (*stage.params.items(), stage.eps)
        whole = self._affine.get(key)
        if whole is None:
            whole = _affine({role: self.array(name) for role, name in stage.params.items()}, stage.eps)
            self._affine[key] = whole
        part, shape = slice(stage.offset, stage.offset + space.width * stage.repeat), (space.width, stage.repeat)
        return Affine(
            whole.factor[part].reshape(shape), whole.shift[part].reshape(shape), whole.mass[part].reshape(shape)
        )


def _affine(params: Mapping[str, Array], eps: float) -> Affine:
    factor = 1 / np.sqrt(params["var"] + eps)
    if "weight" in params:
        factor = factor * params["weight"]
    shift = -factor * params["mean"]
    mass = np.abs(shift)
    if "bias" in params:
        shift, mass = shift + params["bias"], mass + np.abs(params["bias"])
    return Affine(factor, shift, mass)
