"""Layers of torch.nn that are networks themselves, opened into the operations they perform.

torch.fx takes every layer of torch.nn for one operation, and what these do inside has branches that cannot be traced.
On the clone that is traced they are given a forward pass that does the same, written plainly. It is followed and never
run on numbers: attention itself, which mixes the channels of a head, stands in it as one unknown operation.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx, nn
from torch.nn import functional


def attention(query: Tensor, key: Tensor, value: Tensor, width: int, *others: Any) -> Tensor:
    """What attention gives, by its shape."""
    return query.new_empty((*query.shape[:-1], width))


def attention_weights(query: Tensor, key: Tensor, batch_first: bool) -> Tensor:
    """Who looks at whom, by its shape."""
    axis = 1 if batch_first and query.ndim == 3 else 0
    batch = (query.shape[1 - axis],) if query.ndim == 3 else ()
    return query.new_empty((*batch, query.shape[axis], key.shape[axis]))


def attention_width(x: Tensor) -> Tensor:
    """The value itself: the layer has its width written in."""
    return x


fx.wrap("attention_width")
fx.wrap("attention")
fx.wrap("attention_weights")


class Attention(nn.MultiheadAttention):
    """Projections in, attention, projection out."""

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
        q, k, v = self._projected(query, key, value)
        others = [x for x in (key_padding_mask, attn_mask, self.bias_k, self.bias_v) if x is not None]
        mixed, weights = self._attended(q, k, v, others, need_weights, average_attn_weights)
        return attention_width(functional.linear(mixed, self.out_proj.weight, self.out_proj.bias)), weights

    def _projected(self, query: Any, key: Any, value: Any) -> Any:
        alone = query is key and key is value
        query = attention_width(query)
        if self._qkv_same_embed_dim and alone:
            return functional.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        given = (query,) * 3 if alone else (query, attention_width(key), attention_width(value))
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        apart = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        weights = self.in_proj_weight.chunk(3) if self._qkv_same_embed_dim else apart
        return tuple(functional.linear(x, weights[i], biases[i]) for i, x in enumerate(given))

    def _attended(self, q: Any, k: Any, v: Any, others: list[Any], need_weights: bool, average: bool) -> Any:
        """What is looked at, and by whom."""
        mixed = attention(q, k, v, self.embed_dim, *others)
        return mixed, attention_weights(q, k, self.batch_first) if need_weights else None


class EncoderLayer(nn.TransformerEncoderLayer):
    """Attention to itself and an MLP, each with its norm."""

    def forward(self, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False) -> Any:
        """The operations in their order."""
        if self.norm_first:
            src = src + _looked(self, self.norm1(src), src_mask, src_key_padding_mask)
            return src + _fed(self, self.norm2(src), self.dropout2)
        src = self.norm1(src + _looked(self, src, src_mask, src_key_padding_mask))
        return self.norm2(src + _fed(self, src, self.dropout2))


class DecoderLayer(nn.TransformerDecoderLayer):
    """Attention to itself, attention to what was encoded, and an MLP, each with its norm."""

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Any:
        """The operations in their order."""
        masks = (memory_mask, memory_key_padding_mask)
        if self.norm_first:
            tgt = tgt + _looked(self, self.norm1(tgt), tgt_mask, tgt_key_padding_mask)
            tgt = tgt + _looked_across(self, self.norm2(tgt), memory, *masks)
            return tgt + _fed(self, self.norm3(tgt), self.dropout3)
        tgt = self.norm1(tgt + _looked(self, tgt, tgt_mask, tgt_key_padding_mask))
        tgt = self.norm2(tgt + _looked_across(self, tgt, memory, *masks))
        return self.norm3(tgt + _fed(self, tgt, self.dropout3))


class Encoder(nn.TransformerEncoder):
    """One layer after the other."""

    def forward(
        self, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool | None = None
    ) -> Any:
        """The operations in their order."""
        for layer in self.layers:
            src = layer(src, src_mask=mask, src_key_padding_mask=src_key_padding_mask)
        return src if self.norm is None else self.norm(src)


class Decoder(nn.TransformerDecoder):
    """One layer after the other."""

    def forward(self, tgt: Any, memory: Any, tgt_mask: Any = None, memory_mask: Any = None, tgt_key_padding_mask: Any = None, memory_key_padding_mask: Any = None, tgt_is_causal: bool | None = None, memory_is_causal: bool = False) -> Any:  # fmt: skip # noqa: E501
        """The operations in their order."""
        for layer in self.layers:
            tgt = layer(
                tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask,
            )  # fmt: skip
        return tgt if self.norm is None else self.norm(tgt)


class Transformer(nn.Transformer):
    """An encoder and a decoder."""

    def forward(self, src: Any, tgt: Any, src_mask: Any = None, tgt_mask: Any = None, memory_mask: Any = None, src_key_padding_mask: Any = None, tgt_key_padding_mask: Any = None, memory_key_padding_mask: Any = None, src_is_causal: bool | None = None, tgt_is_causal: bool | None = None, memory_is_causal: bool = False) -> Any:  # fmt: skip # noqa: E501
        """The operations in their order."""
        memory = self.encoder(src, mask=src_mask, src_key_padding_mask=src_key_padding_mask)
        return self.decoder(
            tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask, tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask,
        )  # fmt: skip


def _looked(layer: Any, x: Any, mask: Any, padding: Any) -> Any:
    return layer.dropout1(layer.self_attn(x, x, x, attn_mask=mask, key_padding_mask=padding, need_weights=False)[0])


def _looked_across(layer: Any, x: Any, memory: Any, mask: Any, padding: Any) -> Any:
    found = layer.multihead_attn(x, memory, memory, attn_mask=mask, key_padding_mask=padding, need_weights=False)
    return layer.dropout2(found[0])


def _fed(layer: Any, x: Any, dropout: Any) -> Any:
    return dropout(layer.linear2(layer.dropout(layer.activation(layer.linear1(x)))))


_OPENED: dict[type[nn.Module], type[nn.Module]] = {
    nn.MultiheadAttention: Attention, nn.TransformerEncoderLayer: EncoderLayer, nn.TransformerEncoder: Encoder,
    nn.TransformerDecoderLayer: DecoderLayer, nn.TransformerDecoder: Decoder, nn.Transformer: Transformer,
}  # fmt: skip


def has_opened(model: nn.Module) -> bool:
    """Whether some layer of a model would be opened."""
    return any(type(module) in _OPENED for module in model.modules())


def open_layers(model: nn.Module) -> None:
    """Give the layers of a clone, which the caller owns, a forward pass that can be traced."""
    for module in model.modules():
        kind = _OPENED.get(type(module))
        if kind is not None and not module._forward_hooks and not module._forward_pre_hooks:
            module.__class__ = kind


__all__ = ["attention", "attention_weights", "attention_width", "has_opened", "open_layers"]
