"""Plain data for evidence and reports: what recovery did, the layers with their widths, how outputs agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from torch import Tensor, nn

from canon.api.comparing import Compared, Example, Owner
from canon.graph import ChannelGraph, Layer, outline, trace
from canon.graph.experts import channel_tensors
from canon.graph.widening import cast
from canon.recovery import RecoveryResult
from canon.verify import Architecture
from canon.verify.answering import AGREE
from canon.verify.digest import model_digest
from canon.verify.evidence import Document, environment
from canon.verify.function import Comparison, Inputs, compare_models, moved_by_rounding
from canon.verify.precision import SINGLE

RECOVERY_FORMAT: Final = "canon-recovery"
"""What a document of a recovery without a verdict calls itself."""


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
        "network": layers_of(suspect, result.model, None, example),
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


def network_of(compared: Compared, owner: Owner) -> list[dict[str, Any]]:
    """The layers with their widths in the suspect, after recovery, and in the owner's model where that is known."""
    expected = None if compared.structure is not None else owner.architecture
    return layers_of(compared.suspect, compared.recovered, expected, owner.example, compared.graph)


def layers_of(
    suspect: nn.Module,
    recovered: nn.Module,
    expected: Architecture | None,
    example: Example,
    graph: ChannelGraph | None = None,
) -> list[dict[str, Any]]:
    """The layers with their widths in the suspect, after recovery, and, if that is known, in the owner's model."""
    graph = trace(suspect, cast(example, suspect)) if graph is None else graph
    given, ours = (Architecture.of(graph, channel_tensors(model)).shapes for model in (suspect, recovered))

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
        for layer in outline(graph)
    ]


def equality_of(compared: Compared) -> dict[str, Any] | None:
    """Whether every number of the owner's was compared and agrees."""
    certificate, alignment, coverage = compared.certificate, compared.alignment, compared.coverage
    if certificate is None and alignment is None:
        return None if compared.structure is not None else _incomparable(compared)
    form = "given"
    if certificate is not None:
        form = "canonical" if certificate.canonical else "folded" if certificate.folded else "given"
    elif compared.form.changed:
        form = "folded"
    if compared.alone is not None:
        form = "canonical"
    return {
        "by": "reference" if certificate is not None else "layout key",
        "passed": compared.equal,
        "form": form,
        "worst": compared.worst,
        "tolerance": compared.tolerance,
        "established": compared.alone is not None or _established(compared),
        "alone": compared.alone is not None,
        "narrowed": certificate is not None and certificate.narrowed,
        "numbers": coverage.numbers,
        "share": coverage.share,
        "coverage": {"uncompared": [asdict(item) for item in coverage.uncompared]},
        "fixed": dict(compared.fixed),
    }


def _incomparable(compared: Compared) -> dict[str, Any]:
    return {
        "by": "layout key", "passed": False, "form": "given", "worst": None, "tolerance": compared.tolerance,
        "established": False, "alone": False, "narrowed": False, "numbers": 0, "share": 0.0,
        "coverage": {"uncompared": []}, "fixed": {},
    }  # fmt: skip


def _established(compared: Compared) -> bool:
    """Whether the weights decided the order in every space of what was compared."""
    certificate = compared.certificate
    alignment = compared.alignment if certificate is None else certificate.alignment
    return alignment is not None and alignment.established_everywhere


def function_of(compared: Compared, owner: Owner, calls: Mapping[str, Sequence[Inputs]]) -> dict[str, Any]:
    """How far the suspect's outputs agree with the owner's on probes; beside it, with those of its recovered form."""
    against = "the reference" if owner.model is not None else "the registered model"
    if owner.model is not None:
        found = compare_models(compared.running or compared.suspect, owner.model, calls)
    else:
        assert owner.key is not None, "one of them is given"
        found = owner.key.compare_function(compared.running or compared.suspect)
    rounding: float | None = 0.0
    if compared.precision.epsilon > SINGLE or any((item.difference or 0) > AGREE for item in found):
        running = compared.running or compared.suspect
        rounding = moved_by_rounding(running, calls["random"], compared.precision.epsilon)
    recovered: tuple[Comparison, ...] = ()
    if compared.result is not None:
        recovered = compare_models(compared.recovered, compared.suspect, {"random": calls["random"]})
    return {
        "against": against,
        "rounding": rounding,
        "comparisons": [item.to_dict() for item in found],
        "recovered": [item.to_dict() for item in recovered],
    }
