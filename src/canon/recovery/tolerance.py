"""Tolerances, derived from the precision in which the model is stored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from canon.graph.tensors import tensor_names

SAMPLE = 256
"""Values per tensor that are looked at to tell the precision."""


@dataclass(frozen=True)
class Tolerance:
    """What counts as equal and what counts as zero."""

    equal: float
    """Largest disagreement of signatures of one signal. Distinct channels of real networks are 0.07 or more apart."""

    zero: float
    """A sum is zero if it is this small against the sum of the magnitudes in it."""

    rounding: float
    """What the stored precision alone does to a sum."""

    noise: float = 1.0
    """How much of what was added up noise may have moved. Where sums hold much that cancels, this counts and not how
    far apart the sums are."""

    smallest: float = 0.0
    """The step between the smallest numbers: what rounding does to a number that is smaller still."""

    residue: float = 0.0
    """A bias that is all there is of a channel is zero if it is this small against the layer's largest numbers."""

    @staticmethod
    def of(dtype: torch.dtype) -> Tolerance:
        """For weights stored in this dtype. Full precision still allows for a little noise added after the attack."""
        rounding = float(torch.finfo(dtype).eps)
        smallest = float(torch.finfo(dtype).tiny) * rounding
        # Norms are folded in float32 or finer; in units of half precision, numbers that are meant would be residue.
        residue = 32 * min(rounding, float(torch.finfo(torch.float32).eps))
        if dtype == torch.bfloat16:
            return Tolerance(equal=3e-2, zero=1e-2, rounding=rounding, smallest=smallest, residue=residue)
        if dtype == torch.float16:
            return Tolerance(equal=2e-2, zero=5e-3, rounding=rounding, smallest=smallest, residue=residue)
        return Tolerance(equal=1e-2, zero=4e-3, rounding=rounding, smallest=smallest, residue=residue)

    def strict(self) -> Tolerance:
        """What rounding alone explains: no room for noise, and so none to hide in."""
        equal, zero = min(self.equal, 64 * self.rounding), min(self.zero, 32 * self.rounding)
        return replace(self, equal=equal, zero=zero, residue=0.0)

    def narrow(self) -> Tolerance:
        """Room for so little noise that nobody would notice what it hides."""
        return replace(self, equal=self.equal / 30, zero=self.zero / 30)

    @staticmethod
    def for_model(model: nn.Module) -> Tolerance:
        """For the precision that a model's numbers really have: a float32 file may have been through float16."""
        return Tolerance.for_tensors(tensor_names(model)[0].values())

    @staticmethod
    def for_tensors(tensors: Iterable[Tensor]) -> Tolerance:
        """The same, for a model's tensors, of which its parameters count."""
        return Tolerance.of(stored_precision(t for t in tensors if isinstance(t, nn.Parameter)))


def stored_precision(tensors: Iterable[Tensor]) -> torch.dtype:
    """The coarsest float type that holds all sampled numbers exactly, at least as fine as the tensors' own."""
    found = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.device.type != "meta"]
    own = max((tensor.dtype for tensor in found), key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)
    if own not in (torch.float32, torch.float64):
        return own
    coarse = [torch.bfloat16, torch.float16] if found else []
    for tensor in found:
        sample = sample_of(tensor)
        coarse = [dtype for dtype in coarse if torch.equal(sample.to(dtype).to(sample.dtype), sample)]
        if not coarse:
            return own  # most often told by the first tensor
    return coarse[0] if coarse else own


def sample_of(tensor: Tensor) -> Tensor:
    """Some of a tensor's numbers, in memory of their own."""
    return tensor.detach().flatten()[:: max(1, tensor.numel() // SAMPLE)][:SAMPLE].clone()
