"""`judge`: the whole way from a suspect to answers, a verdict and its evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from torch import Tensor, nn

from canon._shown import Shown
from canon.api.comparing import Compared, Example, Owner, compare
from canon.api.containing import (
    containment_figures,
    find,
    find_in_recovered,
    find_without_idle_taps,
    fixed_figures,
    nothing_added,
)
from canon.api.documents import equality_of, function_of, network_of, recovery_of
from canon.api.files import Files
from canon.api.marks import read_mark
from canon.api.settings import settings_of
from canon.errors import CanonError, ExampleError, UnsupportedModelError, VerificationError
from canon.graph import Example as Given
from canon.graph import arguments, trace
from canon.graph.tensors import tensor_names
from canon.graph.tracer import check_model
from canon.graph.widening import cast
from canon.verify import Alignment, LayoutKey, Matching
from canon.verify.answering import NO_CLAIM, agreeing, answers_of, unusual_options
from canon.verify.answers import Answers, Priority
from canon.verify.digest import model_digest
from canon.verify.evidence import Document, alignment_figures, certificate_figures, form_figures, write_evidence
from canon.verify.function import Inputs, given_probes, probe_count, random_probes
from canon.verify.mark import ALPHA, FRACTION, SLACK, Mark
from canon.verify.programs import program_figures
from canon.verify.verdict import Verdict, decide

if TYPE_CHECKING:
    from canon.claims import Presented
    from canon.containment import Location
    from canon.watermarks import Key

COMMITTED: Final = ("tolerance", "layers", "alpha", "fraction", "slack")
"""Options that a claim must have fixed where they are not the standard ones: what a verdict is held against."""


@dataclass(frozen=True, kw_only=True)
class JudgeOptions:
    """What a verdict is held against. Beyond the standard range the strong words are gone."""

    tolerance: float = 1e-3
    """Largest relative residual of numbers that are the same; standard up to 0.01."""

    layers: tuple[str, ...] | None = None
    """Compare only these layers, which is not standard; None: everything that the forward pass uses."""

    matching: Matching = "nearest"
    alpha: float = ALPHA
    """Largest p-value that shows a mark; standard up to 10⁻⁶."""

    fraction: float = FRACTION
    """λ of Tier 2."""

    slack: float = SLACK
    """δ of Tier 2."""

    recover: bool = True
    """Whether to recover the suspect first; False: it is recovered already."""


@dataclass(frozen=True, eq=False)
class Mine:
    """What a claimant brings."""

    suspect: nn.Module
    reference: nn.Module | None
    layout_key: LayoutKey | None
    watermark_key: Key | None
    ancestors: Sequence[nn.Module]
    options: JudgeOptions

    @classmethod
    def of(
        cls,
        files: Files,
        suspect: nn.Module | str | Path,
        reference: nn.Module | str | Path | None,
        layout_key: LayoutKey | str | Path | None,
        watermark_key: Key | str | Path | None,
        ancestors: Sequence[nn.Module | str | Path],
        options: JudgeOptions,
    ) -> Mine:
        """All of it, read from files where it was given so."""
        return cls(
            files.model("suspect", suspect),
            None if reference is None else files.model("reference", reference),
            None if layout_key is None else files.layout_key(layout_key),
            None if watermark_key is None else files.watermark_key(watermark_key),
            [files.model(f"ancestor_{index}", one) for index, one in enumerate(ancestors, 1)],
            options,
        )

    def check(self) -> None:
        """Refuse what is no model, and models without numbers."""
        for model in (self.suspect, *self.ancestors, *(() if self.reference is None else (self.reference,))):
            check_model(model)
            for name, tensor in tensor_names(model)[0].items():
                if tensor.is_meta:
                    raise UnsupportedModelError(
                        "the tensor has a shape but no numbers", where=name, hint="Load the weights"
                    )


@dataclass(frozen=True, eq=False, repr=False)
class Judgement(Shown):
    """A verdict with all that led to it."""

    verdict: Verdict
    answers: Answers
    compared: Compared
    mark: Mark | None
    evidence: Document

    def _shown(self) -> Mapping[str, object]:
        return {
            "verdict": self.verdict.kind,
            "network": self.answers.network.answer,
            "function": self.answers.function.answer,
            "mark": self.answers.mark.answer,
            "priority": self.answers.priority.answer,
            "reason": self.verdict.reason,
        }

    @property
    def recovered(self) -> nn.Module:
        """The recovered suspect."""
        return self.compared.recovered

    @property
    def alignment(self) -> Alignment | None:
        """How the recovered suspect was aligned; None where its widths differ from the owner's."""
        return self.compared.alignment

    @property
    def aligned(self) -> nn.Module | None:
        """The recovered suspect in the owner's layout; None where its widths differ."""
        return None if self.alignment is None else self.alignment.model

    @property
    def location(self) -> Location | None:
        """Where the owner's network was found inside the suspect; None where that was not asked."""
        return self.compared.location


def judge(
    suspect: nn.Module | str | Path,
    example: Given,
    *,
    reference: nn.Module | str | Path | None = None,
    layout_key: LayoutKey | str | Path | None = None,
    watermark_key: Key | str | Path | None = None,
    claim: Presented | None = None,
    ancestors: Sequence[nn.Module | str | Path] = (),
    probes: Mapping[str, Sequence[Tensor]] | None = None,
    options: JudgeOptions | None = None,
    inputs: Mapping[str, Mapping[str, str]] | None = None,
    notes: Mapping[str, Any] | None = None,
) -> Judgement:
    """Answer four questions about a suspect, and say what follows.

    Is it the same network? Does it compute the same? Does it carry the mark? Was the claim there first? Models and keys
    may be given as files; the evidence then holds their digests.

    Args:
        suspect: The model under suspicion, in evaluation mode. It is not changed.
        example: An input tensor, or a tuple or dict of inputs.
        reference: The owner's model.
        layout_key: Its layout key, where the model itself is not at hand.
        watermark_key: The owner's watermark key.
        claim: What the owner had claimed, with its opening.
        ancestors: Public models that the owner's was trained from: only what the owner added then counts.
        probes: Inputs to compare outputs on, beside random ones: by name, one tensor for each input of the model.
        options: What the verdict is held against.
        inputs: Names and digests of the files that the models came from, for the evidence.
        notes: What else the evidence shall carry: command, case, examiner.

    Raises:
        VerificationError: Neither or both of reference and layout key are given, or probes do not fit the model.
    """
    options = options or JudgeOptions()
    _check_options(options)
    files = Files(inputs)
    mine = Mine.of(files, suspect, reference, layout_key, watermark_key, ancestors, options)
    mine.check()
    example = arguments(mine.suspect, example)
    try:
        owner = Owner.of(mine.reference, mine.layout_key, example)
        calls = _calls(example, probes, probe_count(mine.suspect))
        compared, function = _compared(mine, owner, calls)
    except ExampleError as error:
        raise _other_inputs(mine, example) or error from error
    compared, function = _searched(mine, owner, calls, compared, function)
    mark, watermark = None, None
    if mine.watermark_key is not None:
        mark, watermark = read_mark(compared, owner, mine.watermark_key, options)
    figures: Document = {
        "inputs": _inputs(mine, files.named),
        "options": asdict(options),
        "precision": {**asdict(compared.precision), "compared": compared.precision.compared},
        "structure": compared.structure,
        "program": program_figures(compared.housed),
        "notes": list(compared.notes),
        "form": form_figures(compared.form),
        "equality": equality_of(compared),
        "alignment": None if compared.alignment is None else alignment_figures(compared.alignment),
        "certificate": None if compared.certificate is None else certificate_figures(compared.certificate),
        "containment": _containment(compared, owner, calls),
        "settings": settings_of(compared, owner),
        "function": function,
        "watermark": watermark,
        "priority": asdict(_priority(claim, owner, compared, mine, files.named)),
        "recovery": None if compared.result is None else recovery_of(compared.result),
        "network": network_of(compared, owner),
    }
    answers = answers_of(figures)
    verdict = decide(answers, unusual_options(figures["options"]))
    return Judgement(verdict, answers, compared, mark, write_evidence(figures, answers, verdict, notes or {}))


def _compared(
    mine: Mine, owner: Owner, calls: Mapping[str, Sequence[Inputs]], *, by_weights: bool = False
) -> tuple[Compared, Document]:
    """Networks compared as the options say, and outputs."""
    compared = compare(
        mine.suspect,
        owner,
        tolerance=mine.options.tolerance,
        layers=mine.options.layers,
        matching=mine.options.matching,
        recovering=mine.options.recover,
        by_weights=by_weights,
    )
    return compared, function_of(compared, owner, calls)


def _searched(
    mine: Mine, owner: Owner, calls: Mapping[str, Sequence[Inputs]], compared: Compared, function: Document
) -> tuple[Compared, Document]:
    """The owner's network looked for inside the suspect, where it is not plainly the suspect."""
    if compared.structure is not None:
        return compared, function
    if _settled(compared, function):
        if mine.watermark_key is not None and compared.alignment is None:
            # Equal without the owner's own idle channels, which are gone from the suspect: the mark stands among them.
            compared = replace(compared, location=find(compared, owner, mine.ancestors))
        return compared, function
    location = find(compared, owner, mine.ancestors)
    if location.answer != "contained" and compared.housed is None and owner.ambiguous:
        # Names and order may have paired layers that only their weights tell apart.
        again, agreed = _compared(mine, owner, calls, by_weights=True)
        found = None if again.structure is not None else find(again, owner, mine.ancestors)
        if found is not None and found.coverage > location.coverage:
            compared, function, location = again, agreed, found
            if _settled(compared, function):
                return compared, function
    if location.answer != "contained":
        location = find_in_recovered(compared, owner, mine.ancestors, location) or location
    if location.answer != "contained":
        location = find_without_idle_taps(compared, owner, mine.ancestors, location) or location
    compared = replace(compared, location=location)
    if location.answer == "contained" and mine.options.layers is None:
        alone = nothing_added(compared, owner, mine.ancestors)
        if alone is not None:
            compared = replace(compared, alone=alone, fixed=fixed_figures(alone, owner)[0])
    return compared, function


def _other_inputs(mine: Mine, example: Example) -> ExampleError | None:
    """What to do where the suspect takes other inputs than the owner's network, such as images of other colours."""

    def takes(model: nn.Module) -> bool:
        try:
            trace(model, cast(example, model))
        except ExampleError:
            return False
        return True

    program = None if mine.layout_key is None else mine.layout_key.program
    owner = mine.reference if program is None else program.model()
    if owner is None or takes(mine.suspect) == takes(owner):
        return None
    name = "the reference" if program is None else "the registered model"
    other = name if takes(mine.suspect) else "the suspect"
    return ExampleError(
        f"the suspect takes other inputs than the owner's network: {other} does not take the example",
        hint="Give an example of the owner's inputs, and a suspect that takes those: put a layer in front of it that "
        "makes its inputs, such as nn.Sequential(nn.Conv2d(3, 1, 1, bias=False), suspect) with weights of 1/3 for one "
        "of grey images or nn.Upsample(size) for one of another size, or leave out the columns of its first layer for "
        "channels that the owner's images lack",
    )


def _check_options(options: JudgeOptions) -> None:
    """Numbers that are none would be gone from the evidence."""
    for name in ("tolerance", "alpha", "fraction", "slack"):
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < inf:
            raise VerificationError(f"'{name}' must be a number from 0 on, got {value!r:.40}")


def _calls(example: Example, probes: Mapping[str, Sequence[Tensor]] | None, count: int) -> dict[str, list[Inputs]]:
    found = {"random": random_probes(example, count)}
    for name, arrays in (probes or {}).items():
        if name in found:
            raise VerificationError(f"probes may not be called '{name}'", hint="Random ones are always drawn as well")
        found[name] = given_probes(arrays, example)
    return found


def _settled(compared: Compared, function: Document) -> bool:
    """Whether plain equality holds, so that nothing has to be looked for inside the suspect."""
    known = [item["difference"] for item in function["comparisons"]]
    limit = agreeing(function, asdict(compared.precision))
    return compared.equal and bool(known) and all(gap is not None and gap <= limit for gap in known)


def _containment(compared: Compared, owner: Owner, calls: Mapping[str, Sequence[Inputs]]) -> Document | None:
    if compared.location is None:
        return None
    return containment_figures(compared.location, compared, owner, calls)


def _priority(
    claim: Presented | None, owner: Owner, compared: Compared, mine: Mine, inputs: Mapping[str, Mapping[str, str]]
) -> Priority:
    """Who was first, as far as a claim shows."""
    if claim is None:
        return NO_CLAIM
    from canon.claims import Used, examine

    def related(model: nn.Module) -> bool:
        """Whether the suspect is, or was made from, a model that somebody else claims."""
        other = Owner.of(model, None, owner.example)
        return find(compared, other, ()).answer in ("contained", "derived")

    standard, chosen = asdict(JudgeOptions()), asdict(mine.options)
    options = {name: chosen[name] for name in COMMITTED if chosen[name] != standard[name]}
    used = Used(
        reference=mine.reference,
        layout_key=mine.layout_key,
        watermark_keys=() if mine.watermark_key is None else (mine.watermark_key,),
        options=options,
        files={role: [names["sha256"]] for role, names in inputs.items() if "sha256" in names},
        suspect=mine.suspect,
        related=related,
    )
    try:
        return examine(claim, used)
    except CanonError as error:
        return Priority("nothing shown", str(error))


def _inputs(mine: Mine, named: Mapping[str, Mapping[str, str]] | None) -> dict[str, dict[str, str]]:
    """Digests of what was compared, and what is known of the files that it came from."""
    digests: dict[str, dict[str, str]] = {"suspect": {"tensors": model_digest(mine.suspect)}}
    if mine.reference is not None:
        digests["reference"] = {"tensors": model_digest(mine.reference)}
    if mine.layout_key is not None:
        digests["layout_key"] = {"registered_model": mine.layout_key.model}
    for role, names in (named or {}).items():
        digests[role] = {**digests.get(role, {}), **names}
    return digests
