"""A suspect in the owner's bases: where no channel or head can be compared alone, since a group of matrices may act."""

from __future__ import annotations

from torch import nn

from canon.verify.owner_heads import in_owner_heads
from canon.verify.owner_streams import in_owner_streams
from canon.verify.traced import Traced


def in_owner_bases(model: nn.Module, owner: Traced) -> nn.Module:
    """The model, or a copy whose residual streams and attention heads are in the owner's bases. No output changes.

    Args:
        model: The suspect, under the owner's names. It is not changed.
        owner: The owner's model.
    """
    return in_owner_heads(in_owner_streams(model, owner), owner)
