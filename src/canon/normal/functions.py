"""Layers that are not called: their tensors, or what is computed from tensors alone, are handed to a function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import torch
from torch import Tensor, fx

from canon.graph.names import writes_in_place
from canon.normal.nodes import Affine, Linear, Node

CONVOLUTIONS: Final = ("conv1d", "conv2d", "conv3d")
FUNCTIONS: Final = frozenset({*CONVOLUTIONS, "linear", "addmm", "mm", "matmul", "batch_norm", "unfold"})
"""Functions that are layers where their tensors are the model's."""

MOST: Final = 1 << 28
"""Numbers of the largest tensor that is computed."""


def computed(node: fx.Node, tensors: Mapping[fx.Node, Any]) -> Tensor | tuple[Tensor, ...] | None:
    """What a function gives that reads nothing but tensors of the model; None where it changes them or asks chance."""
    if writes_in_place(node, None) or "out" in node.kwargs:
        return None
    args, kwargs = fx.map_arg((tuple(node.args), dict(node.kwargs)), lambda n: tensors[n])
    target: Any = node.target
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            made, again = (
                getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)
                for _ in range(2)
            )
    except Exception:
        return None
    one, two = (tuple(x) if isinstance(x, list | tuple) else (x,) for x in (made, again))
    if not all(isinstance(t, Tensor) and t.numel() <= MOST for t in one):
        return None
    if not all(t.is_meta or torch.equal(t, u) for t, u in zip(one, two, strict=True)):
        return None
    return made.detach() if isinstance(made, Tensor) else one


def functional(name: str, node: fx.Node, values: Mapping[fx.Node, Node], shape: Any) -> Linear | Affine | None:
    """The layer that a function with the model's tensors is; None where it is none.

    Args:
        name: One of `FUNCTIONS`.
        node: Its call.
        values: What the operands are.
        shape: The result's shape.
    """
    operands = _operands(name, node)
    if operands is None:
        return None
    known = {key: values[v] if isinstance(v, fx.Node) else v for key, v in operands.items()}
    x = known.pop("input")
    if not isinstance(x, Node) or x.kind == "tensor" or not isinstance(x.shape, tuple):
        return None
    tensors = {key: v for key, v in known.items() if isinstance(v, Node)}
    if any(t.kind != "tensor" for t in tensors.values()):
        return None
    if name == "batch_norm":
        return _norm(known, tensors)
    if "weight" not in tensors:
        return None
    weight, bias = tensors["weight"], tensors.get("bias")
    names = (weight.name, "" if bias is None else bias.name)
    held = None if bias is None else bias.value
    if name in CONVOLUTIONS:
        return _convolution(known, weight.value, held, names)
    if weight.value.ndim != 2 or (held is not None and held.ndim != 1):
        return None
    turned = name != "linear"
    return Linear(weight.value.t() if turned else weight.value, held, tensors=names, turned=turned)


def product_over_channels(node: fx.Node, values: Mapping[fx.Node, Node]) -> tuple[Node, Linear] | None:
    """`W x` for values `batch x channels x places`: a convolution of one tap."""
    if len(node.args) != 2 or not all(isinstance(a, fx.Node) for a in node.args):
        return None
    weight, x = (values[a] for a in node.args if isinstance(a, fx.Node))
    if weight.kind != "tensor" or x.kind == "tensor" or weight.value.ndim != 2:
        return None
    if not isinstance(x.shape, tuple) or len(x.shape) != 3:
        return None
    return x, Linear(weight.value[:, :, None], None, (1,), ((0, 0),), (1,))


def unfolded(windows: Node, flat: Linear, shape: Any) -> Linear | None:
    """A product with windows that were laid out side by side (`unfold`) is a convolution."""
    label: Any = windows.label
    if windows.kind != "call" or label[0] != "unfold" or not isinstance(shape, tuple) or len(shape) != 4:
        return None
    before = windows.inputs[0].shape
    if not isinstance(before, tuple) or len(before) != 4 or flat.rank != 1 or flat.groups != 1:
        return None
    kernel, dilation, padding, stride = label[1]
    if flat.weight.shape[1] != before[1] * prod(kernel) or flat.weight.shape[2] != 1:
        return None
    sides = tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, d, p, s in zip(before[2:], kernel, dilation, padding, stride, strict=True)
    )
    if shape[2:] != sides:
        return None
    weight = flat.weight.detach().reshape(flat.weight.shape[0], before[1], *kernel)
    return Linear(weight, flat.bias, stride, tuple((p, p) for p in padding), dilation)


def unfold_settings(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Kernel, dilation, padding and stride of `unfold`; None where they are not plain numbers."""
    names, defaults = ("kernel_size", "dilation", "padding", "stride"), {"dilation": 1, "padding": 0, "stride": 1}
    given = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
    found = tuple(_numbers(given.get(key), 2) for key in names)
    return None if any(value is None for value in found) else found


def _operands(name: str, node: fx.Node) -> dict[str, Any] | None:
    names: tuple[str, ...] = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    if name == "addmm":
        names = ("bias", "input", "weight")
    elif name in ("mm", "matmul"):
        names = ("input", "weight")
    elif name == "linear":
        names = names[:3]
    elif name == "batch_norm" and node.target is torch.nn.functional.batch_norm:
        names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    elif name == "batch_norm":  # torch's own, which that one calls
        names = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps", "cudnn")
    if len(node.args) > len(names) or set(node.kwargs) - set(names):
        return None
    found = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return found if isinstance(found.get("input"), fx.Node) else None


def _numbers(value: Any, rank: int) -> tuple[int, ...] | None:
    made = tuple(value) if isinstance(value, list | tuple) else (value,) * rank
    made = made * rank if len(made) == 1 else made
    return made if len(made) == rank and all(type(n) is int for n in made) else None


def _convolution(
    known: Mapping[str, Any], weight: Tensor, bias: Tensor | None, names: tuple[str, str]
) -> Linear | None:
    rank = weight.ndim - 2
    stride, dilation = (_numbers(known.get(key, 1), rank) for key in ("stride", "dilation"))
    groups, padding = known.get("groups", 1), known.get("padding", 0)
    if rank < 1 or stride is None or dilation is None or type(groups) is not int:
        return None
    if padding == "same":
        reach = [(k - 1) * d for k, d in zip(weight.shape[2:], dilation, strict=True)]
        pads: Any = tuple((r // 2, r - r // 2) for r in reach)
    else:
        plain = _numbers(0 if padding == "valid" else padding, rank)
        pads = None if plain is None else tuple((p, p) for p in plain)
    return None if pads is None else Linear(weight, bias, stride, pads, dilation, groups, tensors=names)


def _norm(known: Mapping[str, Any], tensors: Mapping[str, Node]) -> Affine | None:
    keys = ("running_mean", "running_var", "weight", "bias")
    if known.get("training") or not {"running_mean", "running_var"} <= set(tensors):
        return None
    eps = float(known.get("eps", 1e-5))
    own = {key: tensors[key].value if key in tensors else None for key in keys}
    names = tuple((key, tensors[key].name) for key in keys if key in tensors)
    return affine_of({**own, "eps": eps}, names)


NORMS: Final = {
    "layer_norm": ("LayerNorm", ("input", "normalized_shape", "weight", "bias", "eps")),
    "group_norm": ("GroupNorm", ("input", "num_groups", "weight", "bias", "eps")),
}
"""Norms that look at all channels of one sample, by function: the layer, and the operands."""


def norm_layer(name: str, node: fx.Node, values: Mapping[fx.Node, Node]) -> Node | None:
    """The layer that a norm with tensors of the model is; its value says what the tensors are called there."""
    kind, names = NORMS[name]
    if len(node.args) > len(names) or set(node.kwargs) - set(names):
        return None
    given: dict[str, Any] = {"eps": 1e-5, **dict(zip(names, node.args, strict=False)), **node.kwargs}
    x, shape = values.get(given["input"]), given.get("normalized_shape")
    held = {k: values[v] for k, v in given.items() if k in ("weight", "bias") and isinstance(v, fx.Node)}
    if x is None or any(t.kind != "tensor" for t in held.values()) or len(held) < 2:
        return None
    if isinstance(shape, list | tuple) and len(shape) != 1:
        return None
    settings = [("eps", given["eps"]), ("affine" if name == "group_norm" else "elementwise_affine", True)]
    settings += [("num_groups", given["num_groups"])] if name == "group_norm" else []
    if any(not isinstance(v, int | float | None) for _, v in settings):
        return None
    tensors = {key: t.value for key, t in held.items()}
    return Node("call", [x], (kind, tuple(sorted(settings))), {key: t.name for key, t in held.items()}, tensors)


def affine_of(norm: Mapping[str, Any], sources: tuple[tuple[str, str], ...]) -> Affine:
    """A batch norm's tensors and epsilon as an affine map."""
    mean, var = (norm[key].detach().double() for key in ("running_mean", "running_var"))
    weight = torch.ones_like(mean) if norm["weight"] is None else norm["weight"].detach().double()
    bias = torch.zeros_like(mean) if norm["bias"] is None else norm["bias"].detach().double()
    scale = weight / torch.sqrt(var + norm["eps"])
    return Affine(scale, bias - mean * scale, sources=sources, norm=dict(norm))
