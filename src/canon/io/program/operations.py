"""The operations that a program may use: a list, because some operators of torch open files or allocate at will."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch

from canon.errors import UnsupportedModelError
from canon.graph.rules import rule_names

_MORE: Final = frozenset(
    "scaled_dot_product_attention matmul mm bmm addmm baddbmm einsum stack index roll constant_pad_nd where maximum "
    "minimum eq ne lt le gt ge logical_not logical_and logical_or masked_fill cumsum arange zeros ones full "
    "zeros_like new_zeros new_ones new_full ones_like full_like scalar_tensor embedding repeat repeat_interleave tile "
    "flip pixel_shuffle pixel_unshuffle grid_sampler_2d upsample_nearest1d upsample_bicubic2d upsample_trilinear3d "
    "upsample_linear1d var var_mean std std_mean linalg_vector_norm norm max min argmax argmin prod numpy_T conj "
    "floor_divide remainder tril triu gather index_select channel_shuffle unfold im2col col2im hardtanh clamp_min_ "
    "clamp_max_ pow exp2 tan atan sinh cosh bitwise_not bitwise_and bitwise_or view_as reshape_as _to_copy".split()
)
_SIZES: Final[dict[str, Callable[..., Any]]] = {
    f"_operator.{name}": getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "neg")
}
_PREFIX: Final = "torch.ops.aten."
IGNORED: Final = frozenset(
    f"{_PREFIX}{name}"
    for name in (
        "_assert_tensor_metadata.default", "_assert_scalar.default", "sym_constrain_range_for_size.default",
        "sym_constrain_range.default", "_assert_async.msg",
    )
) | {"_operator.ge", "_operator.le", "_operator.gt", "_operator.lt", "_operator.eq", "_operator.ne"}  # fmt: skip
"""What only checks sizes and types."""


def operation(target: str, where: str) -> Callable[..., Any]:
    """The operation of that name."""
    if target in _SIZES:
        return _SIZES[target]
    name, _, overload = target.removeprefix(_PREFIX).partition(".")
    if target.startswith(_PREFIX) and name in _names():
        packet = getattr(torch.ops.aten, name, None)
        if packet is not None and overload in packet.overloads():
            found: Callable[..., Any] = getattr(packet, overload)
            return found
    raise UnsupportedModelError(
        f"the program uses the operation '{target:.120}', which Canon does not read",
        where=where,
        hint="Export the model without decompositions and custom operators, or give its weights and --arch",
    )


@cache
def _names() -> frozenset[str]:
    return frozenset(rule_names()) | _MORE
