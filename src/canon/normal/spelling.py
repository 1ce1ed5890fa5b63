"""One spelling for operations that torch has many of: activations, pooling, flattening, padding."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import inf, prod
from typing import Any, Final

import torch
from torch import nn

from canon.graph.names import function_name

Labels = tuple[Hashable, ...]
"""What a call does, as calls of one spelling, one behind the other; none: nothing at all."""

POSITIONAL: Final[Mapping[str, tuple[str, ...]]] = {
    "leaky_relu": ("negative_slope",), "elu": ("alpha",), "celu": ("alpha",), "gelu": ("approximate",),
    "hardtanh": ("min_val", "max_val"), "softmax": ("dim",), "log_softmax": ("dim",), "clamp": ("min", "max"),
    "clip": ("min", "max"), "clamp_min": ("min",), "clamp_max": ("max",), "softplus": ("beta", "threshold"),
    "dropout": ("p", "training"), "stochastic_depth": ("p", "mode", "training"), "flatten": ("start_dim", "end_dim"),
    "max_pool": ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"),
    "avg_pool": ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"),
    "adaptive_avg_pool": ("output_size",), "adaptive_max_pool": ("output_size", "return_indices"),
    "threshold": ("threshold", "value"), "pad": ("pad", "mode", "value"), "mean": ("dim", "keepdim"), "batch_norm": (),
}  # fmt: skip
"""Names of operands after the first, in order."""

DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "leaky_relu": {"negative_slope": 0.01}, "elu": {"alpha": 1.0}, "celu": {"alpha": 1.0},
    "gelu": {"approximate": "none"}, "softplus": {"beta": 1.0, "threshold": 20.0},
}  # fmt: skip

MEAN: Final[Labels] = (("mean of positions",),)
TURNS: Final = ("permute", "transpose", "movedim", "moveaxis", "swapaxes", "swapdims", "t")
NOTHING: Final = frozenset({"identity", "attention_width", "contiguous", "clone", "detach", "alias", "lift_fresh_copy"})
CASTS: Final = frozenset({"double", "float", "half", "bfloat16", "to", "type_as"})
RANDOM: Final = frozenset(
    {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "stochastic_depth"}
)
PLAIN: Final = frozenset(
    "silu sigmoid tanh gelu hardswish hardsigmoid leaky_relu elu celu selu mish softplus softsign softmax log_softmax "
    "abs neg exp log sqrt rsqrt square erf".split()
)
WIDTHS: Final = frozenset(
    {"num_features", "num_channels", "num_parameters", "in_features", "out_features", "in_channels", "out_channels",
     "normalized_shape", "training", "inplace", "track_running_stats", "momentum"}
)  # fmt: skip


OTHERS: Final = {
    nn.functional.unfold: "unfold", torch.maximum: "maximum", torch.max: "max", torch.minimum: "minimum",
    torch.threshold: "threshold", nn.functional.threshold: "threshold", torch.where: "where",
    operator.gt: "gt", torch.gt: "gt", operator.neg: "neg", torch.neg: "neg", operator.matmul: "matmul",
    torch.matmul: "matmul", torch.mm: "mm", torch.addmm: "addmm", torch.sum: "sum",
}  # fmt: skip
"""Functions that channels are not followed through, and that are known here all the same."""


def called_name(function: Any) -> str | None:
    """The name of a function, by what it is; None where it is not known."""
    try:
        return function_name(function) or OTHERS.get(function)
    except TypeError:
        return None


def plain_settings(module: nn.Module) -> tuple[tuple[str, Hashable], ...]:
    """A layer's settings but for its widths."""
    found = {k: v for k, v in vars(module).items() if not k.startswith("_") and k not in WIDTHS}
    kept = (str, int, float, bool, type(None))
    settings = {k: tuple(v) if isinstance(v, list | tuple) else v for k, v in found.items()}
    return tuple(sorted((k, v if isinstance(v, (*kept, tuple)) else str(v)) for k, v in settings.items()))


def elementwise(
    name: str | None, args: Sequence[Any], given: Mapping[str, Any] | Iterable[tuple[str, Any]], before: Any, after: Any
) -> Labels | None:
    """What an operation on one value does; None where it has no other spelling.

    Args:
        name: Its name in `canon.graph.rules`.
        args: Operands after the value.
        given: Operands by name, or a layer's settings.
        before: The value's shape, where it is known.
        after: The result's.
    """
    if name is None:
        return None
    base = name.removesuffix("_")
    family = base[:-2] if base[-2:] in ("1d", "2d", "3d") and "pool" in base else base
    names = POSITIONAL.get(family, ())
    if len(args) > len(names) and family in POSITIONAL:
        return None
    settings = {**dict(zip(names, args, strict=False)), **dict(given)}
    settings.pop("inplace", None)
    settings = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
    if name in TURNS and isinstance(before, tuple):
        return _turn(name, args, dict(given), len(before))
    if base in NOTHING and not args:
        return ()
    if base in CASTS and all(isinstance(a, torch.dtype) and a.is_floating_point for a in (*args, *settings.values())):
        return ()
    if base == "threshold" and settings.get("threshold") == settings.get("value") == 0:
        return (("relu",),)
    if base == "leaky_relu" and settings.get("negative_slope") == 0:
        return (("relu",),)
    if base in RANDOM:
        # A layer's own `training` is not among its settings: layers are in evaluation mode.
        training = settings.get("training", bool(args) or "p" not in settings)
        return () if not training or settings.get("p") == 0 else None
    if base in ("relu", "relu6", "hardtanh", "clamp", "clip", "clamp_min", "clamp_max"):
        return _clamp(base, settings)
    if base in ("softmax", "log_softmax") and isinstance(before, tuple) and isinstance(settings.get("dim"), int):
        settings["dim"] %= len(before)
    if base in PLAIN:
        used = {**DEFAULTS.get(base, {}), **{k: v for k, v in settings.items() if k in POSITIONAL.get(base, ())}}
        return None if len(args) > len(names) else ((base, tuple(sorted(used.items()))),)
    if family in ("max_pool", "avg_pool", "adaptive_avg_pool", "adaptive_max_pool"):
        return _pool(family, settings, before, after)
    if base == "mean":
        return _mean(settings, before, after)
    if base == "pad":
        return _pad(settings)
    if base == "flatten":
        return _flatten(before, after)
    return None


def _turn(name: str, args: Sequence[Any], given: Mapping[str, Any], rank: int) -> Labels | None:
    """Axes in another order."""
    try:
        turned = getattr(torch.empty(tuple(range(1, rank + 1)), device="meta"), name)(*args, **given)
    except (TypeError, RuntimeError, IndexError):
        return None  # operands that are computed
    order = tuple(size - 1 for size in turned.shape)
    return () if order == tuple(range(rank)) else (("permute", order),)


def _clamp(base: str, settings: Mapping[str, Any]) -> Labels | None:
    low, high = settings.get("min"), settings.get("max")
    if base == "relu":
        low, high = 0, None
    elif base == "relu6":
        low, high = 0, 6
    elif base == "hardtanh":
        low, high = settings.get("min_val", -1.0), settings.get("max_val", 1.0)
    if not all(x is None or isinstance(x, int | float) for x in (low, high)):
        return None
    ends = tuple(None if x is None or abs(x) == inf else float(x) for x in (low, high))
    return (("relu",) if ends == (0.0, None) else ("clamp", *ends),)


def _tuple(value: Any, rank: int) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,) * rank


def _pool(family: str, settings: Mapping[str, Any], before: Any, after: Any) -> Labels | None:
    if not isinstance(before, tuple) or not isinstance(after, tuple) or settings.get("return_indices"):
        return None
    rank = len(before) - 2
    if family.startswith("adaptive"):
        if before == after:
            return ()
        if family == "adaptive_avg_pool" and set(after[2:]) == {1} and rank > 0:
            return MEAN
        return ((family, after[2:]),)
    kernel = _tuple(settings["kernel_size"], rank)
    stride = kernel if settings.get("stride") in (None, ()) else _tuple(settings["stride"], rank)
    padding = _tuple(settings.get("padding", 0), rank)
    if set(kernel) == set(stride) == {1} and set(padding) == {0} and settings.get("divisor_override") is None:
        return ()
    shape = (kernel, stride, padding)
    if family == "max_pool":
        return ((family, *shape, _tuple(settings.get("dilation", 1), rank), bool(settings.get("ceil_mode"))),)
    if kernel == before[2:] and not any(padding) and settings.get("divisor_override") is None:
        return () if set(kernel) == {1} else MEAN
    counted = bool(settings.get("count_include_pad", True)) and any(padding)
    return ((family, *shape, bool(settings.get("ceil_mode")), counted, settings.get("divisor_override")),)


def _mean(settings: Mapping[str, Any], before: Any, after: Any) -> Labels | None:
    if not isinstance(before, tuple) or len(before) < 3 or settings.get("dim") is None:
        return None
    dims = sorted(int(d) % len(before) for d in _tuple(settings["dim"], 1))
    if dims != list(range(2, len(before))):
        return (("mean over", tuple(dims), len(after) == len(before)),) if isinstance(after, tuple) else None
    mean = () if prod(before[2:]) == 1 else MEAN
    return mean if len(after) == len(before) else (*mean, ("flatten", 1))


def _pad(settings: Mapping[str, Any]) -> Labels | None:
    pad = settings.get("pad", settings.get("padding"))
    if not isinstance(pad, tuple) or not all(isinstance(p, int) for p in pad):
        return None
    mode, value = settings.get("mode", "constant"), settings.get("value") or 0
    if not any(pad):
        return ()
    while pad[-2:] == (0, 0):
        pad = pad[:-2]
    return (("pad", pad, mode, float(value)),)


def _flatten(before: Any, after: Any) -> Labels | None:
    if not isinstance(before, tuple) or not isinstance(after, tuple):
        return None
    if before == after:
        return ()
    start = len(after) - 1
    if len(after) < len(before) and before[:start] == after[:start] and prod(before[start:]) == after[start]:
        return (("flatten", start),)
    return None
