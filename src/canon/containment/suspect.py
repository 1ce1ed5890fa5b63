"""The suspect in the owner's form: names, norms and kernels, with its widths as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from canon.errors import CanonError, ExampleError, UnsupportedModelError, VerificationError
from canon.graph.tensors import tensor_names
from canon.normal import Housed, Outline
from canon.rewrite import FoldableNorm, replace_tensors, resize_kernels
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
    traced = Traced.of(model, example)
    formed, form = conform(model, pairs, example, graph=traced.graph)
    formed, cropped = _crop(formed, architecture.shapes)
    if formed is not model:
        traced = Traced.of(formed, example)
    _check(architecture, traced, skeleton)
    traced.check_finite()
    return Suspect(traced, form, cropped)


def fitting(example: Tensor | tuple[Any, ...], model: nn.Module) -> Tensor | tuple[Any, ...]:
    """An example in the precision that a model computes in: suspect and owner may differ in it."""
    kind = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    if isinstance(example, Tensor):
        return example if kind is None or not example.is_floating_point() else example.to(kind)
    return tuple(fitting(x, model) if isinstance(x, Tensor) else x for x in example)


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


def _crop(model: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> tuple[nn.Module, tuple[str, ...]]:
    """Kernels that grew, with their padding, without what grew.

    What was added may hold anything where surplus channels are read or made. Whether it does nothing is seen in the
    outputs, which are compared with those of the suspect as it was given.
    """
    tensors, _ = tensor_names(model)
    modules = dict(model.named_modules())
    changed: dict[str, Tensor] = {}
    rings: dict[str, int] = {}
    for name, shape in shapes.items():
        weight, layer = tensors.get(f"{name}.weight"), modules.get(name)
        if weight is None or weight.ndim != len(shape) or weight.shape[2:] == shape[2:]:
            continue
        grown = {(big - small) / 2 for big, small in zip(weight.shape[2:], shape[2:], strict=True)}
        count = grown.pop()
        padding = getattr(layer, "padding", ())
        if grown or count < 1 or count % 1 or not isinstance(padding, tuple) or min(padding, default=0) < count:
            continue
        inner = weight.detach()
        for axis in range(2, weight.ndim):
            inner = inner.narrow(axis, int(count), shape[axis])
        changed[f"{name}.weight"], rings[f"{name}.weight"] = inner, -int(count)
    if not changed:
        return model, ()
    result = replace_tensors(model, changed)
    resize_kernels(result, rings)
    return result, tuple(name.removesuffix(".weight") for name in changed)
