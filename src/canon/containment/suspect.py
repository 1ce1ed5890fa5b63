"""The suspect in the owner's form: names, norms and kernels, with its widths as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from canon.errors import CanonError, ExampleError, UnsupportedModelError, VerificationError
from canon.graph.experts import channel_tensors
from canon.graph.inputs import fitting
from canon.graph.orders import side_by_side
from canon.graph.tensors import StoredTensors, clone_with, tensor_names
from canon.normal import Housed, Outline
from canon.rewrite import FoldableNorm, resize_kernels
from canon.rewrite.kernels import cropped
from canon.verify.architecture import Architecture
from canon.verify.forms import Form, conform
from canon.verify.naming import named_alike
from canon.verify.programs import brought
from canon.verify.skeleton import skeleton_of
from canon.verify.traced import Traced


class OtherNetwork(VerificationError):
    """The suspect is built in another way than the owner's network."""


@dataclass(frozen=True, eq=False)
class Suspect:
    """A suspect that can be compared with the owner's network."""

    traced: Traced
    form: Form
    """Norms that were put in or folded."""

    cropped: tuple[str, ...]
    """Layers whose kernels had grown."""

    housed: Housed | None = None
    """How it was brought into the owner's program, where it was another one."""


def prepare(
    model: nn.Module,
    architecture: Architecture,
    skeleton: str | None,
    norms: Iterable[FoldableNorm] | None,
    example: Tensor | tuple[Any, ...],
    reference: nn.Module | None,
    program: Outline | None = None,
) -> Suspect:
    """Bring a suspect into the owner's form; where it is another program, into the owner's.

    Raises:
        OtherNetwork: It has other layers than the owner's network, or they are wired in another way.
    """
    try:
        return _prepare(model, architecture, skeleton, norms, example, reference)
    except (OtherNetwork, UnsupportedModelError, ExampleError) as error:
        housed, _ = brought(model, fitting(example, model), reference, program)
        if housed is None:
            raise
        try:
            found = _prepare(housed.model, architecture, skeleton, norms, example, reference)
        except CanonError:
            raise error from None
        return replace(found, housed=housed)


def _prepare(
    model: nn.Module,
    architecture: Architecture,
    skeleton: str | None,
    norms: Iterable[FoldableNorm] | None,
    example: Tensor | tuple[Any, ...],
    reference: nn.Module | None,
) -> Suspect:
    pairs = None if norms is None else tuple(norms)
    example = fitting(example, model)
    model = named_alike(model, architecture, example, reference=reference, norms=pairs or ())
    whole, rings = channel_tensors(model), _grown(model, architecture.shapes)
    model = _cropped(model, rings) if rings else model
    traced = Traced.of(model, example)
    try:
        formed, form = conform(model, pairs, example, graph=traced.graph)
    except UnsupportedModelError as error:
        raise OtherNetwork(f"the suspect's norms cannot be put where the owner's stand: {error}") from error
    if formed is not model:
        traced = Traced.of(formed, example)
    elif rings:
        shapes = {name: traced.tensors[name].shape for name in rings}
        traced = replace(traced, tensors=_Cropped(side_by_side(whole, traced.graph.orders), shapes))
    _check(architecture, traced, skeleton)
    traced.check_finite(but_layers=True)
    return Suspect(traced, form, tuple(name.removesuffix(".weight") for name in rings))


def _check(expected: Architecture, traced: Traced, skeleton: str | None) -> None:
    got = traced.architecture.shapes
    missing = [name for name in expected.shapes if name not in got]
    surplus = [name for name in got if name not in expected.shapes]
    if missing or surplus:
        name = (missing or surplus)[0]
        what = f"lacks the layer '{name}'" if missing else f"has a layer '{name}' of its own"
        raise OtherNetwork(
            f"the suspect {what} ({len(missing)} layers missing, {len(surplus)} more than the owner's network has)",
            where=name,
        )
    for name, shape in expected.shapes.items():
        if len(shape) != len(got[name]) or shape[2:] != got[name][2:]:
            raise OtherNetwork("the layer has another kernel than the owner's", where=name)
    if skeleton is not None and skeleton_of(traced.graph) != skeleton:
        raise OtherNetwork("the suspect has the owner's layers, wired in another way")


class _Cropped(StoredTensors):
    """A model's tensors, some kernels without what grew: written whenever they are asked for, and not kept."""

    def __init__(self, tensors: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]) -> None:
        self.tensors, self.shapes = tensors, shapes

    def __getitem__(self, name: str) -> Tensor:
        tensor = self.tensors[name].detach()
        return _inner(tensor, self.shapes[name]) if name in self.shapes else tensor

    def shape(self, name: str) -> torch.Size:
        """A tensor's shape."""
        return self.shapes[name] if name in self.shapes else self.tensors[name].shape

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def _inner(weight: Tensor, shape: torch.Size) -> Tensor:
    """The middle of every kernel."""
    gone = [before - after for before, after in zip(weight.shape[2:], shape[2:], strict=True)]
    return cropped(weight, [(count // 2, count - count // 2) for count in gone])


def _grown(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """By weight whose kernel has grown, with its padding: by how many entries on every side."""
    tensors, _ = tensor_names(model)
    modules = dict(model.named_modules())
    rings: dict[str, int] = {}
    for name, shape in shapes.items():
        weight, layer = tensors.get(f"{name}.weight"), modules.get(name)
        if weight is None or weight.ndim != len(shape) or weight.shape[2:] == shape[2:]:
            continue
        grown = {(big - small) / 2 for big, small in zip(weight.shape[2:], shape[2:], strict=True)}
        count = grown.pop()
        padding, step = getattr(layer, "padding", ()), max(getattr(layer, "dilation", (1,)))
        if not grown and count >= 1 and not count % 1 and isinstance(padding, tuple) and min(padding) >= count * step:
            rings[f"{name}.weight"] = int(count)
    return rings


def _cropped(model: nn.Module, rings: Mapping[str, int]) -> nn.Module:
    """Kernels that grew, with their padding, without what grew; the result shares the model's tensors.

    What was added may hold anything where surplus channels are read or made. Whether it does nothing is seen in the
    outputs, which are compared with those of the suspect as it was given.
    """
    tensors, _ = tensor_names(model)
    shared: dict[int, Tensor] = {id(tensor): tensor for tensor in tensors.values()}
    for name, count in rings.items():
        inner = tensors[name].detach()
        for axis in range(2, inner.ndim):
            inner = inner.narrow(axis, count, inner.shape[axis] - 2 * count)
        shared[id(tensors[name])] = nn.Parameter(inner, requires_grad=False)
    result = clone_with(model, shared)
    resize_kernels(result, {name: -count for name, count in rings.items()})
    return result
