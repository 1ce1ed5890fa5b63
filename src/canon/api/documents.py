"""Plain data for evidence and reports: what recovery did, the layers with their widths, how outputs agree."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon.graph import Layer, outline, trace
from canon.graph.tensors import tensor_names
from canon.recovery import RecoveryResult
from canon.verify import Alignment, Architecture, LayoutKey
from canon.verify.digest import model_digest
from canon.verify.evidence import Document, environment

RECOVERY_FORMAT: Final = "canon-recovery"
"""What a document of a recovery without a verdict calls itself."""

PROBES: Final = 16
"""Random inputs that outputs are compared on."""


def recovery_document(
    suspect: nn.Module,
    result: RecoveryResult,
    example: Tensor | tuple[Any, ...],
    *,
    inputs: Mapping[str, Mapping[str, str]] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Document:
    """What recovery found, as plain data of the same form as in evidence; a report can be made of it.

    Args:
        suspect: The model as it was given.
        result: What `recover` made of it.
        example: An input tensor or tuple of inputs.
        inputs: Names and digests of the files that the models came from.
        options: Everything that was asked for.
    """
    digests = {"suspect": {"tensors": model_digest(suspect)}}
    for role, names in (inputs or {}).items():
        digests[role] = {**digests.get(role, {}), **names}
    return {
        "format": RECOVERY_FORMAT,
        "version": 1,
        "inputs": digests,
        "options": dict(options or {}),
        "recovery": recovery_of(result),
        "network": network_of(suspect, result.model, None, example),
        "environment": environment(),
    }


def recovery_of(result: RecoveryResult) -> dict[str, Any]:
    """What recovery did, without the single decisions."""
    report = result.report
    return {
        "method": report.method,
        "removed": report.removed,
        "merged": report.merged,
        "parameters_before": report.parameters[0],
        "parameters_after": report.parameters[1],
        "agreement": report.agreement,
        "cropped": {name: list(size) for name, size in report.cropped.items()},
        "spaces": [space.to_dict(decisions=False) for space in report.spaces],
    }


def network_of(
    suspect: nn.Module, recovered: nn.Module, expected: Architecture | None, example: Tensor | tuple[Any, ...]
) -> list[dict[str, Any]]:
    """The layers with their widths in the suspect, after recovery, and, if that is known, in the owner's model."""
    given, ours = architecture_of(suspect, example).shapes, architecture_of(recovered, example).shapes

    def width(layer: Layer, shapes: Mapping[str, tuple[int, ...]]) -> int:
        # A weight with groups may hold the channels of one group only.
        return layer.width * shapes[layer.name][layer.axis] // given[layer.name][layer.axis]

    return [
        {
            "name": layer.name,
            "kind": layer.kind,
            "makes": list(layer.makes),
            "reads": list(layer.reads),
            "suspect": layer.width,
            "recovered": width(layer, ours),
            "reference": None if expected is None else width(layer, expected.shapes),
        }
        for layer in outline(trace(suspect, example))
    ]


def architecture_of(of: nn.Module | LayoutKey, example: Tensor | tuple[Any, ...]) -> Architecture:
    """The architecture of a model, or of the model that a key was made from."""
    if isinstance(of, LayoutKey):
        return of.layout.architecture
    tensors, _ = tensor_names(of)
    return Architecture.of(trace(of, example), tensors)


def agreement_of(
    suspect: nn.Module,
    recovered: nn.Module,
    alignment: Alignment | None,
    reference: nn.Module | None,
    example: Tensor | tuple[Any, ...],
) -> dict[str, Any]:
    """How far outputs agree with the suspect's on random probes."""
    generator = torch.Generator().manual_seed(0)
    given = tuple(_probe(x, generator) for x in (example if isinstance(example, tuple) else (example,)))
    expected = _outputs(suspect, given)
    others = {"recovered": recovered, "aligned": None if alignment is None else alignment.model, "reference": reference}
    found: dict[str, Any] = {"probes": PROBES, "seed": 0}
    for name, model in others.items():
        if model is None:
            continue
        got = _outputs(model, given)
        size = float(expected.abs().max())
        same = (got.argmax(-1) == expected.argmax(-1)).double().mean() if got.ndim > 1 else torch.tensor(float("nan"))
        found[name] = {
            "largest_difference": float((got - expected).abs().max()) / (size or 1.0),
            "same_decision": float(same),
        }
    return found


def _probe(x: Any, generator: torch.Generator) -> Any:
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2:
        return x
    return torch.randn((PROBES, *x.shape[1:]), generator=generator).to(x.device)


def _outputs(model: nn.Module, given: tuple[Any, ...]) -> Tensor:
    half = any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters())
    dtype = torch.float32 if half else next((p.dtype for p in model.parameters()), torch.float32)
    runner = copy.deepcopy(model).float() if half else model
    with torch.no_grad():
        result = runner(*(x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in given))
    parts = [result] if isinstance(result, Tensor) else list(result.values() if isinstance(result, dict) else result)
    return torch.cat([part.double().cpu().flatten(1) for part in parts], dim=1)
