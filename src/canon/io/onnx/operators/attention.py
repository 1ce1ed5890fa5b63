"""Attention as one operator, which exporters write from operator set 23 on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from torch.nn import functional

from canon.errors import UnsupportedModelError
from canon.io.onnx.model import Node
from canon.io.onnx.operators.registry import Result, operator
from canon.io.onnx.values import Value

if TYPE_CHECKING:
    from canon.io.onnx.build import Builder

KNOWN: Final = frozenset(
    {"is_causal", "scale", "kv_num_heads", "q_num_heads", "softmax_precision", "qk_matmul_output_mode", "softcap"}
)


@operator("Attention")
def attention(b: Builder, node: Node, query: Value, key: Value, value: Value, mask: Value | None = None) -> Result:
    """Of heads that stand on an axis of their own, as many for queries as for keys; nothing is remembered."""
    if set(node.attributes) - KNOWN or node.real("softcap", 0.0) or any(node.outputs[1:]):
        raise UnsupportedModelError("attention with a cap or a window, or with more results than one")
    query, key, value = (b.activation(x) for x in (query, key, value))
    heads = [x.hints[0].shape[1] for x in (query, key, value) if x.rank == 4]
    if len(heads) < 3 or len(set(heads)) > 1:
        raise UnsupportedModelError("attention whose heads share an axis or keys")
    causal, scale = bool(node.integer("is_causal", 0)), node.attributes.get("scale")
    if causal and (mask is not None or query.hints[0].shape[2] != key.hints[0].shape[2]):
        raise UnsupportedModelError("causal attention with a mask, or to other places")
    settings: dict[str, Any] = {} if scale is None else {"scale": node.real("scale", 1.0)}
    settings |= {"is_causal": True} if causal else {}
    settings |= {} if mask is None else {"attn_mask": mask}
    return b.call(functional.scaled_dot_product_attention, query, key, value, **settings)
