"""What changes places together beside channels: experts with the rows of their router, inner channels of a Mamba layer.

A router gives every token some experts and their shares. Where the experts stand means nothing, as long as the rows of
the router stand in the same order. Channels that a state space keeps apart change places with their rows in all tensors
of the layer. Names say where such things may be; whether they are is tried: random numbers take the place of the
layer's own, they change places, and what it computes must stay, or change places with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.graph.experts import expert_tensors
from canon.graph.tensors import modules_of

TOKENS: Final = 64
"""Random inputs that a layer is tried on."""

_INNER: Final = {
    "A_log": (0, 1), "D": (0, 1), "conv1d.weight": (0, 1), "conv1d.bias": (0, 1), "in_proj.weight": (0, 2),
    "in_proj.bias": (0, 2), "x_proj.weight": (1, 1), "dt_proj.weight": (0, 1), "dt_proj.bias": (0, 1),
    "out_proj.weight": (1, 1),
}  # fmt: skip
"""Tensors of a Mamba layer: the axis of its inner channels, and how often they stand on it side by side."""

_NEEDED: Final = ("A_log", "D", "conv1d.weight", "in_proj.weight", "x_proj.weight", "dt_proj.weight", "out_proj.weight")


@dataclass(frozen=True)
class Bundle:
    """Things that may change places: experts, or inner channels of a layer."""

    count: int
    rows: str
    """The tensor whose first rows tell them apart: what these read has fixed coordinates."""

    axes: tuple[tuple[str, int, int], ...]
    """Everything that changes places with them: a tensor, its axis, and how often they stand on it side by side."""

    def moved(self, name: str, tensor: Tensor, order: Tensor) -> Tensor:
        """One of the tensors with the thing `order[i]` at place `i`."""
        axis, times = next((axis, times) for one, axis, times in self.axes if one == name)
        index = torch.cat([order + start * self.count for start in range(times)])
        return tensor.index_select(axis, index.to(tensor.device))


def free_orders(model: nn.Module) -> tuple[Bundle, ...]:
    """All that may change places in a model beside channels."""
    return (*_experts(model), *_inner_channels(model))


def _experts(model: nn.Module) -> Iterator[Bundle]:
    blocks: dict[str, dict[str, int]] = {}
    for name, parts in expert_tensors(model).items():
        blocks.setdefault(name.rpartition(".")[0], {})[name] = parts.experts
    for path, tensors in blocks.items():
        parent, _, own = path.rpartition(".")
        count = next(iter(tensors.values()))
        routers = [
            (name, module)
            for name, module in model.get_submodule(parent).named_children()
            if name != own and getattr(module._parameters.get("weight"), "shape", ())[:1] == (count,)
        ]
        if len(routers) != 1:
            continue
        name, router = routers[0]
        inside = f"{parent}.{name}" if parent else name
        axes = tuple((key, _along(t, count), 1) for key, t in _held(router).items())
        if _router_moves(router, Bundle(count, "weight", axes)):
            named = tuple((f"{inside}.{key}", axis, times) for key, axis, times in axes)
            yield Bundle(count, f"{inside}.weight", (*named, *((one, 0, 1) for one in tensors)))


def _inner_channels(model: nn.Module) -> Iterator[Bundle]:
    tried: dict[object, bool] = {}
    for path, module in modules_of(model):
        if "A_log" not in module._parameters:
            continue
        held = dict(module.named_parameters()) | dict(module.named_buffers())
        count = len(held["A_log"])
        norms = {name for name in held if "norm" in name}
        places = _INNER | {name: (0, 1) for name in norms if held[name].shape == (count,)}
        axes = tuple((name, *places[name]) for name in held if name in places)
        free = Bundle(count, "in_proj.weight", axes)
        fits = all(held[name].shape[axis] == times * count for name, axis, times in axes if held[name].ndim > axis)
        if not set(_NEEDED) <= held.keys() <= {*_INNER, *norms, "out_proj.bias"} or not fits:
            continue
        kind = _kind(module, held)
        if kind not in tried:
            tried[kind] = _layer_stays(module, held, free)
        if tried[kind]:
            start = f"{path}." if path else ""
            yield Bundle(count, start + free.rows, tuple((start + name, axis, times) for name, axis, times in axes))


def _kind(module: nn.Module, held: Mapping[str, Tensor]) -> object:
    """What layers have in common that are built alike, so that one of them is tried for all."""
    shapes = tuple((name, tuple(tensor.shape)) for name, tensor in held.items())
    plain = {name: value for name, value in vars(module).items() if isinstance(value, bool | int | float | str)}
    plain.pop("layer_idx", None)
    return type(module), repr(module), shapes, tuple(sorted(plain.items()))


def _held(module: nn.Module) -> dict[str, Tensor]:
    return dict(module.named_parameters()) | dict(module.named_buffers())


def _along(tensor: Tensor, count: int) -> int:
    """The first axis of a tensor that is so long; 0: none is."""
    return tuple(tensor.shape).index(count) if count in tensor.shape else 0


def _drawn(tensors: Mapping[str, Tensor], free: Bundle) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
    """Random numbers in the place of tensors, the same with things in other places, and these places."""
    generator = torch.Generator().manual_seed(free.count)
    drawn = {name: torch.randn(t.shape, generator=generator, dtype=torch.float64) for name, t in tensors.items()}
    order = torch.randperm(free.count, generator=generator)
    along = {name for name, _, _ in free.axes}
    moved = {name: free.moved(name, t, order) if name in along else t for name, t in drawn.items()}
    return drawn, moved, order


def _router_moves(router: nn.Module, free: Bundle) -> bool:
    """Whether all tensors of a router have an entry for each expert, and its choice changes places with them.

    Where two rows are the same, the choice between these experts falls by their places.
    """
    tensors = _held(router)
    weight = tensors["weight"]
    if weight.ndim != 2 or any(free.count not in t.shape for t in tensors.values()):
        return False
    if not weight.is_meta and len(weight.unique(dim=0)) < free.count:
        return False
    before, after, order = _drawn(tensors, free)
    x = torch.randn(TOKENS, weight.shape[1], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shares = [_shares(_run(router, held, x), free.count) for held in (before, after)]
    return shares[0] is not None and shares[1] is not None and torch.allclose(shares[0][:, order], shares[1], atol=1e-6)


def _layer_stays(layer: nn.Module, tensors: Mapping[str, Tensor], free: Bundle) -> bool:
    """Whether a layer computes the same with its inner channels in other places."""
    before, after, _ = _drawn(tensors, free)
    shape = (2, TOKENS // 8, tensors[free.rows].shape[1])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    results = [[*_floats(_run(layer, held, x))] for held in (before, after)]
    pairs = [*zip(*results, strict=False)]
    return bool(pairs) and all(
        a.shape == b.shape and bool(a.isfinite().all()) and torch.allclose(a, b, rtol=1e-4) for a, b in pairs
    )


def _run(layer: nn.Module, tensors: Mapping[str, Tensor], x: Tensor) -> Any:
    """What a layer makes of an input with other numbers; None: it cannot be run by itself."""
    try:
        with torch.no_grad():
            return torch.func.functional_call(layer, dict(tensors), (x,))
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError):
        return None


def _shares(found: Any, count: int) -> Tensor | None:
    """`tokens x experts`: the shares that a router gives; None: what it gives is something else."""
    parts = [*_tensors(found)]
    chosen = [part for part in parts if part.dtype == torch.int64 and part.ndim == 2]
    shares = [part for part in parts if part.is_floating_point() and chosen and part.shape == chosen[0].shape]
    if len(chosen) != 1 or len(shares) != 1:
        return None
    return torch.zeros(len(chosen[0]), count, dtype=torch.float64).scatter_add_(1, chosen[0], shares[0].double())


def _tensors(found: Any) -> Iterable[Tensor]:
    parts = found if isinstance(found, tuple | list) else (found,)
    return (part for part in parts if isinstance(part, Tensor))


def _floats(found: Any) -> Iterable[Tensor]:
    return (part.double() for part in _tensors(found) if part.is_floating_point())
