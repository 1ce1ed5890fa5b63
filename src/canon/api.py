"""What takes more than one part of Canon: certificates on canonical forms, and the whole way to a verdict."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

from canon.errors import VerificationError
from canon.graph import Layer, outline, trace
from canon.graph.tensors import tensor_names
from canon.recovery import RecoveryResult
from canon.recovery import recover as recover_with
from canon.recovery.pipeline import Progress
from canon.verify import Alignment, Architecture, Certificate, LayoutKey, Matching, align, layer_spaces
from canon.verify import certify as certify_once
from canon.verify.digest import model_digest
from canon.verify.evidence import Document, environment, write_evidence
from canon.verify.mark import ALPHA, FRACTION, SLACK, Mark, Tier2
from canon.verify.verdict import Findings, Verdict, decide

if TYPE_CHECKING:
    from canon.watermarks import Key

RECOVERY_FORMAT: Final = "canon-recovery"
"""What a document of a recovery without a verdict calls itself."""

PROBES = 16
"""Random inputs that outputs are compared on."""


def recover(
    model: nn.Module,
    example: Tensor | tuple[Any, ...],
    method: str = "exact",
    *,
    widths: nn.Module | Mapping[str, Tensor] | str | None = None,
    sanity_check: bool = True,
    options: Any = None,
    progress: Progress | None = None,
) -> RecoveryResult:
    """Undo structural obfuscation of a model, from the model alone.

    Args:
        model: The suspect, in evaluation mode. It is not changed.
        example: An input tensor or tuple of inputs.
        method: `exact` (from the weights, no data) or `probe` (from activations).
        widths: The clean widths, if they are known: a model, a state dict, or the name of an architecture of the zoo.
            Channels that could be the owner's pruned ones are then kept until the width is reached.
        sanity_check: Run both models and compare.
        options: For `probe`, a `ProbeOptions`.
        progress: Called with a stage's name, what is done and what is known to remain in all.

    Raises:
        RecoveryError: The recovered model does not agree with the input; the input is still what it was.
    """
    known = _shapes_of(widths) if isinstance(widths, str) else widths
    return recover_with(
        model, example, method, widths=known, sanity_check=sanity_check, options=options, progress=progress
    )


def _shapes_of(name: str) -> dict[str, Tensor]:
    """The tensors of an architecture without their numbers."""
    from canon import zoo

    with torch.device("meta"):
        return zoo.model(name).state_dict()


def certify(
    recovered: nn.Module,
    reference: nn.Module,
    example: Tensor | tuple[Any, ...],
    tolerance: float = 1e-3,
    layers: Iterable[str] | None = None,
    *,
    matching: Matching = "nearest",
    canonical: bool = True,
) -> Certificate:
    """Tier 1: compare a recovered model with a reference, up to the order and scale of channels.

    A reference may hold channels that do nothing or stand twice; recovery rightly removes them. Where that keeps the
    models from being compared, both are recovered and their canonical forms compared instead.

    Args:
        recovered: The recovered model, in evaluation mode. It is not changed.
        reference: The owner's model.
        example: An input tensor or tuple of inputs.
        tolerance: Largest relative residual that passes.
        layers: The layers that count; None: all.
        matching: `nearest`, `greedy` or `optimal`.
        canonical: Whether canonical forms may be compared.
    """
    names = None if layers is None else tuple(layers)
    found = certify_once(recovered, reference, example, tolerance, names, matching=matching)
    related = found.alignment is None or found.alignment.established
    if found.passed or not related or not canonical:
        return found
    ours, theirs = recover(recovered, example).model, recover(reference, example).model
    again = certify_once(ours, theirs, example, tolerance, names, matching=matching)
    # A failure is told about the models that were given.
    return replace(again, canonical=True) if again.passed else found


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """What a verdict is held against."""

    tolerance: float = 1e-3
    """Largest relative residual of Tier 1."""

    layers: tuple[str, ...] | None = None
    """The layers that Tier 1 compares; None: those that bear the watermark, or all without a watermark key."""

    matching: Matching = "nearest"
    alpha: float = ALPHA
    """Largest p-value that proves a mark."""

    fraction: float = FRACTION
    """λ of Tier 2."""

    slack: float = SLACK
    """δ of Tier 2."""

    recover: bool = True
    """Whether to recover the suspect first; False: it is recovered already."""


@dataclass(frozen=True, eq=False)
class Judgement:
    """A verdict with all that led to it."""

    verdict: Verdict
    findings: Findings
    recovered: nn.Module
    evidence: Document = field(repr=False)

    @property
    def aligned(self) -> nn.Module | None:
        """The recovered suspect in the reference's layout; None where the widths differ."""
        return None if self.findings.alignment is None else self.findings.alignment.model


def judge(
    suspect: nn.Module,
    example: Tensor | tuple[Any, ...],
    *,
    reference: nn.Module | None = None,
    layout_key: LayoutKey | None = None,
    watermark_key: Key | None = None,
    options: JudgeOptions | None = None,
    inputs: Mapping[str, Mapping[str, str]] | None = None,
) -> Judgement:
    """Recover a suspect, align it, and say what has been shown.

    Args:
        suspect: The model under suspicion, in evaluation mode. It is not changed.
        example: An input tensor or tuple of inputs.
        reference: The owner's model.
        layout_key: Its layout key, where the model itself is not at hand.
        watermark_key: The owner's watermark key; without it the claim is only that the suspect is the reference.
        options: What the verdict is held against.
        inputs: Names and digests of the files that the models came from, for the evidence.

    Raises:
        VerificationError: Neither or both of reference and layout key are given, or the architectures differ.
    """
    options = options or JudgeOptions()
    if (reference is None) == (layout_key is None):
        raise VerificationError("give either a reference or a layout key")
    anchor: nn.Module | LayoutKey = layout_key if reference is None else reference  # type: ignore[assignment]
    expected = _architecture(anchor, example)
    expected.differences(_architecture(suspect, example))
    result = recover(suspect, example, widths=_widths(expected)) if options.recover else None
    recovered = suspect if result is None else result.model
    layers = options.layers
    if layers is None and watermark_key is not None:
        layers = tuple(name for name in watermark_key.layers if name in expected.shapes) or None
    certificate, alignment = None, None
    if reference is not None:
        certificate = certify(recovered, reference, example, options.tolerance, layers, matching=options.matching)
    if certificate is not None and not certificate.canonical:
        alignment = certificate.alignment
    elif not expected.differences(_architecture(recovered, example)):
        alignment = align(recovered, anchor, example, matching=options.matching)
    mark, tier2 = None, None
    if watermark_key is not None:
        known = layer_spaces(trace(recovered, example))
        spaces = {space for layer in watermark_key.layers for space in known.get(layer, ())}
        mark, tier2 = _read(suspect, recovered, alignment, reference, watermark_key, options, spaces)
    findings = Findings(alignment, certificate, mark, tier2, options.tolerance, options.alpha)
    verdict = decide(findings)
    digests: dict[str, Mapping[str, str]] = {"suspect": {"tensors": model_digest(suspect)}}
    if reference is not None:
        digests["reference"] = {"tensors": model_digest(reference)}
    if layout_key is not None:
        digests["layout_key"] = {"registered_model": layout_key.model}
    for role, names in (inputs or {}).items():
        digests[role] = {**digests.get(role, {}), **names}
    evidence = write_evidence(
        findings,
        verdict,
        inputs=digests,
        options=asdict(options),
        agreement=_agreement(suspect, recovered, alignment, reference, example),
        recovery=None if result is None else _recovery(result),
        network=_network(suspect, recovered, expected, example),
    )
    return Judgement(verdict, findings, recovered, evidence)


def _architecture(of: nn.Module | LayoutKey, example: Tensor | tuple[Any, ...]) -> Architecture:
    if isinstance(of, LayoutKey):
        return of.layout.architecture
    tensors, _ = tensor_names(of)
    return Architecture.of(trace(of, example), tensors)


def _widths(expected: Architecture) -> dict[str, Tensor]:
    """The owner's widths, in the form that recovery takes: channels that the owner pruned are not for it to remove."""
    return {f"{name}.weight": torch.empty(shape, device="meta") for name, shape in expected.shapes.items()}


def _read(
    suspect: nn.Module,
    recovered: nn.Module,
    alignment: Alignment | None,
    reference: nn.Module | None,
    key: Key,
    options: JudgeOptions,
    spaces: set[str],
) -> tuple[Mark, Tier2]:
    """Read the mark where it counts: from the aligned model if its order is forced, else as it was recovered."""
    from canon import watermarks

    scheme = watermarks.get(key.scheme)
    if alignment is not None and alignment.established_at(spaces):
        mark = Mark.of(scheme.extract(alignment.model, key), "aligned", spaces)
    else:
        mark = Mark.of(scheme.extract(recovered, key), "recovered", spaces)
    # Without the owner's model, the mark is taken to have been whole.
    clean = 1.0 if reference is None else scheme.similarity(reference, key)
    attacked = scheme.similarity(suspect, key)
    return mark, Tier2(clean, attacked, mark.similarity, options.fraction, options.slack)


def _agreement(
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


def _recovery(result: RecoveryResult) -> dict[str, Any]:
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
        "recovery": _recovery(result),
        "network": _network(suspect, result.model, None, example),
        "environment": environment(),
    }


def _network(
    suspect: nn.Module, recovered: nn.Module, expected: Architecture | None, example: Tensor | tuple[Any, ...]
) -> list[dict[str, Any]]:
    """The layers with their widths in the suspect, after recovery, and, if that is known, in the owner's model."""
    given, ours = _architecture(suspect, example).shapes, _architecture(recovered, example).shapes

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
