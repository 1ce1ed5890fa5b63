"""Verdicts: proved, refuted, or inconclusive because of something. Never a bare boolean."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, final

from canon.errors import VerificationError
from canon.verify.alignment import Alignment
from canon.verify.certificate import Certificate
from canon.verify.forms import GIVEN, Form
from canon.verify.mark import ALPHA, Mark, Tier2


@final
@dataclass(frozen=True)
class Proved:
    """The claim holds."""

    tier: Literal[1, 2]
    """1: the suspect is the reference up to order and scale of channels. 2: it carries the owner's mark."""

    reason: str


@final
@dataclass(frozen=True)
class Refuted:
    """The claim does not hold."""

    reason: str


@final
@dataclass(frozen=True)
class Inconclusive:
    """Neither has been shown."""

    reason: str


Verdict = Proved | Refuted | Inconclusive


@dataclass(frozen=True, eq=False)
class Findings:
    """All that a verdict rests on."""

    alignment: Alignment | None
    """How the recovered suspect was aligned; None where its widths differ from the reference's."""

    certificate: Certificate | None = None
    """Tier 1 against the reference; None where there is only a layout key."""

    mark: Mark | None = None
    """The watermark as read; None where no watermark key was given."""

    tier2: Tier2 | None = None
    tolerance: float = 1e-3
    alpha: float = ALPHA
    form: Form = GIVEN
    """How the suspect was brought into the reference's form."""

    refused: str | None = None
    """Why a watermark key was given and the mark was not read."""

    def __post_init__(self) -> None:
        if (self.mark is None) != (self.tier2 is None):
            raise VerificationError("a mark and its Tier 2 come together")
        if self.mark is not None and self.refused is not None:
            raise VerificationError("a mark that was refused was not read")
        if self.mark is None or self.mark.read_from != "aligned":
            return
        if self.alignment is None or not self.alignment.established_at(self.mark.spaces):
            raise VerificationError(
                "the mark was read from an aligned model, but the alignment is not established",
                hint="Read it from the recovered model instead",
            )

    @property
    def equal(self) -> bool:
        """Whether the suspect is the reference up to order and scale, as far as reference or key can tell."""
        if self.certificate is not None:
            return self.certificate.passed
        return self.alignment is not None and self.alignment.established and self.alignment.worst <= self.tolerance


def decide(findings: Findings) -> Verdict:
    """From findings to a verdict."""
    if findings.mark is not None:
        return _decide_by_mark(findings, findings.mark)
    verdict = _decide_by_weights(findings)
    if findings.refused is None:
        return verdict
    return replace(verdict, reason=f"{verdict.reason}; the mark was not read: {findings.refused}")


def _decide_by_weights(findings: Findings) -> Verdict:
    alignment = findings.alignment
    if findings.equal:
        return Proved(1, _equality(findings))
    if alignment is None:
        return Inconclusive(_widths(findings))
    if alignment.unrelated:
        return Refuted(_unrelated(alignment))
    if alignment.established:
        return Inconclusive(f"{_difference(findings)}; it may be a changed copy, which only a watermark can show")
    return Inconclusive(f"only {alignment.distinct:.0%} of the channels have a distinct match, yet some spaces agree")


def _decide_by_mark(findings: Findings, mark: Mark) -> Verdict:
    alignment, tier2 = findings.alignment, findings.tier2
    assert tier2 is not None, "checked with the findings"
    read = f"{mark.matched} of {mark.total} bits, p = {mark.p_value:.2g}"
    present = mark.p_value <= findings.alpha
    if findings.equal:
        if present:
            return Proved(1, f"{_equality(findings)}, and it carries the message ({read})")
        if 2.0**-mark.total > findings.alpha:
            return Inconclusive(f"{_equality(findings)}, but {mark.total} bits are too few to prove a mark ({read})")
        if mark.read_from != "aligned":
            lost = "the weights do not say in which order the channels stood, so the message may be there unread"
            return Inconclusive(f"{_equality(findings)}, but {lost} ({read})")
        return Refuted(f"{_equality(findings)}, but the key's message is not in it ({read})")
    if present and tier2.passed:
        return Proved(2, f"the model carries the message ({read}), and similarity {tier2.recovered:.3f} is back")
    if present:
        lost = f"only {tier2.recovered - tier2.attacked:.3f} of the lost similarity {tier2.drop:.3f} is back"
        return Inconclusive(f"the message is there ({read}), but {lost}")
    if alignment is None:
        return Inconclusive(f"{_widths(findings)}; the message is not read ({read})")
    if alignment.unrelated:
        return Refuted(f"{_unrelated(alignment)}, and the message is not in it ({read})")
    return Inconclusive(f"{_difference(findings)}, and the message is not read ({read})")


def _equality(findings: Findings) -> str:
    certificate = findings.certificate
    if certificate is None:
        assert findings.alignment is not None, "equality needs an alignment"
        return f"the model has the registered layout{_folded(findings)} within {findings.alignment.worst:.2g}"
    forms = "the canonical form of the reference" if certificate.canonical else "the reference"
    layers = len(certificate.layers)
    return (
        f"the model is {forms}{_folded(findings)} up to order and scale: "
        f"{layers} layer{'s' * (layers != 1)} within {certificate.max_rel_err:.2g}"
    )


def _folded(findings: Findings) -> str:
    count = len(findings.form.restored) + len(findings.form.folded)
    return f", with {count} norms folded," if count else ""


def _difference(findings: Findings) -> str:
    certificate = findings.certificate
    if certificate is None or not certificate.failed:
        worst = 0.0 if findings.alignment is None else findings.alignment.worst
        return f"the model is not what was registered: channels differ by up to {worst:.2g}"
    first = certificate.failed[0]
    many = f"{len(certificate.failed)} of {len(certificate.layers)} layers differ from the reference"
    return f"{many}, first '{first.name}': {first.reason}"


def _widths(findings: Findings) -> str:
    if findings.certificate is not None and findings.certificate.failed:
        first = findings.certificate.failed[0]
        return f"the recovered model has other widths than the reference, at '{first.name}': {first.reason}"
    return "the recovered model has other widths than what was registered"


def _unrelated(alignment: Alignment) -> str:
    return f"the model is no more like the reference than chance: {alignment.distinct:.0%} of the channels match"
