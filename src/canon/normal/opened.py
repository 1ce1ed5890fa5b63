"""Attention layers of torch.nn as the operations that they perform, on a clone whose program is read.

`canon.graph` opens them for channels, and attention itself is one unknown operation there. Here programs are matched
operation by operation and run on numbers, so it is written out.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import functional

from canon.graph.opened import Attention, attention_width, open_layers


class WrittenOut(Attention):
    """Projections in, attention by heads, projection out."""

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> Any:
        """The operations in their order."""
        others = (key_padding_mask, attn_mask, self.bias_k, self.bias_v)
        if any(x is not None for x in others) or self.add_zero_attn or not self._qkv_same_embed_dim:
            raise NotImplementedError("attention with masks, or with widths of their own for keys and values")
        weight, bias = self.in_proj_weight, self.in_proj_bias
        alone = query is key and key is value
        query = attention_width(query)
        if alone:
            q, k, v = functional.linear(query, weight, bias).chunk(3, -1)
        else:
            given = query, attention_width(key), attention_width(value)
            weights, biases = weight.chunk(3), (None,) * 3 if bias is None else bias.chunk(3)
            q, k, v = (functional.linear(x, weights[i], biases[i]) for i, x in enumerate(given))
        turn = (0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3)
        back = (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)
        q, k, v = (x.unflatten(-1, (self.num_heads, self.head_dim)).permute(turn) for x in (q, k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v).permute(back).flatten(2)
        result = attention_width(functional.linear(mixed, self.out_proj.weight, self.out_proj.bias))
        if not need_weights:
            return result, None
        weights = (q @ k.transpose(-2, -1) * self.head_dim**-0.5).softmax(-1)
        return result, weights.mean(1) if average_attn_weights else weights


def open_written_out(model: nn.Module) -> nn.Module:
    """A clone, which the caller owns, with layers of torch.nn opened into operations that can be run."""
    open_layers(model)
    for module in model.modules():
        if type(module) is Attention:
            module.__class__ = WrittenOut
    return model
