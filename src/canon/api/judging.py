"""`judge`: the whole way from a suspect to a verdict and its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from canon.api.certifying import certify
from canon.api.documents import agreement_of, architecture_of, network_of, recovery_of
from canon.api.recovering import recover
from canon.errors import VerificationError
from canon.graph import trace
from canon.verify import Alignment, Architecture, LayoutKey, Matching, align, layer_spaces
from canon.verify.digest import model_digest
from canon.verify.evidence import Document, write_evidence
from canon.verify.forms import Form, conform, norms_of
from canon.verify.mark import ALPHA, FRACTION, SLACK, Mark, Tier2
from canon.verify.naming import named_alike
from canon.verify.verdict import Findings, Verdict, decide

if TYPE_CHECKING:
    from canon.watermarks import Extraction, Key


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
    expected = architecture_of(anchor, example)
    norms = anchor.norms if isinstance(anchor, LayoutKey) else norms_of(anchor, example)
    digests: dict[str, Mapping[str, str]] = {"suspect": {"tensors": model_digest(suspect)}}
    suspect = named_alike(suspect, expected, example, reference=reference, norms=norms or ())
    given, form = conform(suspect, norms, example)
    expected.differences(architecture_of(given, example))
    result = recover(suspect, example, widths=_widths(expected)) if options.recover else None
    recovered = suspect if result is None else result.model
    formed, _ = conform(recovered, norms, example) if form.changed else (recovered, form)
    attacked = None if watermark_key is None else _extract(given, watermark_key)
    refused = None if attacked is None else _refusal(attacked, form)
    layers = options.layers
    if layers is None and watermark_key is not None and refused is None:
        layers = tuple(name for name in watermark_key.layers if name in expected.shapes) or None
    certificate, alignment = None, None
    if reference is not None:
        certificate = certify(
            recovered, reference, example, options.tolerance, layers, matching=options.matching, norms=norms
        )
    if certificate is not None and not certificate.canonical:
        alignment = certificate.alignment
    elif not expected.differences(architecture_of(formed, example)):
        alignment = align(formed, anchor, example, matching=options.matching)
    mark, tier2 = None, None
    if watermark_key is not None and attacked is not None and refused is None:
        known = layer_spaces(trace(formed, example))
        spaces = {space for layer in watermark_key.layers for space in known.get(layer, ())}
        mark = _read(formed, alignment, watermark_key, spaces)
        # Without the owner's model, the mark is taken to have been whole.
        clean = 1.0 if reference is None else _extract(reference, watermark_key).similarity
        tier2 = Tier2(clean, attacked.similarity, mark.similarity, options.fraction, options.slack)
    findings = Findings(alignment, certificate, mark, tier2, options.tolerance, options.alpha, form, refused)
    verdict = decide(findings)
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
        agreement=agreement_of(suspect, recovered, alignment, reference, example),
        recovery=None if result is None else recovery_of(result),
        network=network_of(suspect, recovered, expected, example),
    )
    return Judgement(verdict, findings, recovered, evidence)


def _widths(expected: Architecture) -> dict[str, Tensor]:
    """The owner's widths, in the form that recovery takes: channels that the owner pruned are not for it to remove."""
    return {f"{name}.weight": torch.empty(shape, device="meta") for name, shape in expected.shapes.items()}


def _extract(model: nn.Module, key: Key) -> Extraction:
    from canon import watermarks

    return watermarks.get(key.scheme).extract(model, key)


def _refusal(extraction: Extraction, form: Form) -> str | None:
    """Why a mark would count for nothing: it stands in numbers that were folded away in the suspect."""
    lent = [source for source in extraction.sources if source in form.lent]
    if not lent:
        return None
    return (
        f"{extraction.scheme} reads '{lent[0]}', which was folded away in the suspect: "
        "what could be read there would be the owner's own numbers"
    )


def _read(formed: nn.Module, alignment: Alignment | None, key: Key, spaces: set[str]) -> Mark:
    """Read the mark where it counts: from the aligned model if its order is forced, else as it was recovered."""
    if alignment is not None and alignment.established_at(spaces):
        return Mark.of(_extract(alignment.model, key), "aligned", spaces)
    return Mark.of(_extract(formed, key), "recovered", spaces)
