"""Attention layers of torch.nn as the operations that they perform, on a clone whose program is read.

`canon.graph` opens them for channels, and attention itself is one unknown operation there. Here programs are matched
operation by operation and run on numbers, so it is written out.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import functional

from canon.graph.opened import Attention, open_layers


class WrittenOut(Attention):
    """Attention by heads."""

    def _attended(self, q: Any, k: Any, v: Any, others: list[Any], need_weights: bool, average: bool) -> Any:
        if others or self.add_zero_attn or not self._qkv_same_embed_dim:
            raise NotImplementedError("attention with masks, or with widths of their own for keys and values")
        turn = (0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3)
        back = (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)
        q, k, v = (x.unflatten(-1, (self.num_heads, self.head_dim)).permute(turn) for x in (q, k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v).permute(back).flatten(2)
        if not need_weights:
            return mixed, None
        weights = (q @ k.transpose(-2, -1) * self.head_dim**-0.5).softmax(-1)
        return mixed, weights.mean(1) if average else weights


def open_written_out(model: nn.Module) -> nn.Module:
    """A clone, which the caller owns, with layers of torch.nn opened into operations that can be run."""
    open_layers(model)
    for module in model.modules():
        if type(module) is Attention:
            module.__class__ = WrittenOut
    return model
