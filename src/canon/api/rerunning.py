"""Repeat the run that a document speaks of, and say field by field what was reproduced.

A repeated run computes on another machine, with other versions, perhaps on another device. Numbers are the same within
what floating point allows. Where a run draws afresh so that nobody can prepare for it (projections that channels are
located with), its numbers are near and not equal. The controls of a watermark key are drawn again from their seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from math import isclose, log
from typing import TYPE_CHECKING, Any, Final, Literal

from torch import Tensor, nn

from canon.api.comparing import Example, Owner
from canon.api.judging import Judgement, JudgeOptions, judge
from canon.api.marks import _image, _where
from canon.errors import CanonError, VerificationError
from canon.verify import LayoutKey
from canon.verify.evidence import plain

if TYPE_CHECKING:
    from canon.watermarks import Key

Word = Literal["same", "near", "differs"]
Document = Mapping[str, Any]

FLOAT: Final = 1e-4
"""Numbers that differ by no more, absolutely or relatively, are the same within floating point."""

ROUGH: Final = 0.25
"""The same for numbers that are drawn afresh in every run."""

DRAWN: Final = ("containment", "answers.network", "verdict.reason", "certificate.histogram")
"""Fields, and what is below them, that depend on what a run draws."""

DRAWN_WITH: Final = ("watermark.controls", "watermark.p_value", "answers.mark.p_value", "answers.mark.reason")
"""The same where the mark was read from a model that was located, and extracted, with fresh draws."""

RELATIVE: Final = ("p_value", "binomial")
"""Numbers that are compared by their ratio alone, because all of them are small."""

CIRCUMSTANCES: Final = ("record", "environment", "digest", "inputs")
"""Fields that say when, where and from which files; they are compared by themselves or not at all."""

_NUMBER: Final = re.compile(r"-?\d[\d,]*\.?\d*(?:[eE][+-]?\d+)?%?")


@dataclass(frozen=True)
class Field:
    """What became of one field of the document."""

    name: str
    word: Word
    said: Any = None
    """What the document says, where it differs."""

    found: Any = None


@dataclass(frozen=True)
class Reproduction:
    """A document beside a repeated run."""

    inputs: tuple[Field, ...]
    """Digests of the inputs."""

    fields: tuple[Field, ...]
    """Every single figure, answer and word."""

    versions: tuple[Field, ...]
    """Versions that differ; that alone is no difference of the result."""

    @property
    def reproduced(self) -> bool:
        """Whether inputs and results are the document's."""
        return not self.different

    @property
    def different(self) -> tuple[Field, ...]:
        """All that was not reproduced, digests first."""
        return tuple(field for field in (*self.inputs, *self.fields) if field.word == "differs")

    def by_part(self) -> dict[str, list[Field]]:
        """Fields by the part of the document that they stand in."""
        found: dict[str, list[Field]] = {}
        for field in self.fields:
            found.setdefault(field.name.split(".")[0].split("[")[0], []).append(field)
        return found


def compare_documents(said: Document, found: Document) -> Reproduction:
    """Hold a document against that of a repeated run."""
    names = [name for name in said if name not in CIRCUMSTANCES]
    extracted = (said["watermark"] or {}).get("read_from") == "extracted"
    drawn = (*DRAWN, *DRAWN_WITH) if extracted else DRAWN
    return Reproduction(
        inputs=compare_inputs(said["inputs"], found["inputs"]),
        fields=tuple(field for name in names for field in _fields(name, said[name], found.get(name), drawn)),
        versions=tuple(
            Field(name, "differs", value, found["environment"].get(name))
            for name, value in said["environment"].items()
            if found["environment"].get(name) != value
        ),
    )


def compare_inputs(said: Document, found: Document) -> tuple[Field, ...]:
    """The digests of a document's inputs beside those of the inputs at hand. Names of files mean nothing."""
    rows = []
    for role in sorted(said.keys() | found.keys()):
        ours, theirs = _digests(found.get(role)), _digests(said.get(role))
        for name in sorted(ours.keys() | theirs.keys()):
            same = ours.get(name) == theirs.get(name)
            word: Word = "same" if same else "differs"
            rows.append(Field(f"inputs.{role}.{name}", word, theirs.get(name), ours.get(name)))
    return tuple(rows)


def options_of(document: Document) -> JudgeOptions:
    """The options that a document names.

    Raises:
        VerificationError: It names options that this version does not have, or of another kind.
    """
    given = dict(document["options"])
    unknown = sorted(given.keys() - {field.name for field in fields(JudgeOptions)})
    if unknown:
        raise VerificationError(f"the document names the option '{unknown[0]:.40}', which this version does not have")
    kinds = {"layers": list | None, "matching": str, "recover": bool}
    for name, value in given.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (isinstance(value, kinds[name]) if name in kinds else number):
            raise VerificationError(f"the option '{name}' of the document is of another kind")
    if given.get("layers") is not None:
        given["layers"] = tuple(map(str, given["layers"]))
    return JudgeOptions(**given)


def rerun(
    document: Document,
    suspect: nn.Module,
    example: Example,
    *,
    reference: nn.Module | None = None,
    layout_key: LayoutKey | None = None,
    watermark_key: Key | None = None,
    ancestors: Sequence[nn.Module] = (),
    probes: Mapping[str, Sequence[Tensor]] | None = None,
    inputs: Mapping[str, Mapping[str, str]] | None = None,
    **further: Any,
) -> tuple[Reproduction, Document]:
    """Repeat the run of a document with its own options; see `canon.judge` for the arguments.

    Returns:
        What was reproduced, and the document of the repeated run.
    """
    found = judge(
        suspect,
        example,
        reference=reference,
        layout_key=layout_key,
        watermark_key=watermark_key,
        ancestors=ancestors,
        probes=probes,
        options=options_of(document),
        inputs=inputs,
        **further,
    )
    evidence = dict(found.evidence)
    if watermark_key is not None:
        evidence = _same_controls(document, found, Owner.of(reference, layout_key, example), watermark_key)
    return compare_documents(document, evidence), found.evidence


def _same_controls(document: Document, found: Judgement, owner: Owner, key: Key) -> dict[str, Any]:
    """The new evidence with controls drawn from the document's seed, so that both can be compared."""
    from dataclasses import asdict

    from canon import watermarks
    from canon.verify.answering import answers_of, unusual_options
    from canon.verify.verdict import decide

    evidence, mark = dict(found.evidence), found.evidence["watermark"]
    said = document["watermark"]
    if mark is None or said is None or mark["refused"] is not None or said["refused"] is not None:
        return evidence
    try:
        _, model, _ = _where(found.compared, owner, key)
        seed, count = int(said["controls"]["seed"]), int(said["controls"]["count"])
        controls = watermarks.get(key.scheme).controls(model, key, min(count, 4096), seed, _image(owner))
    except (CanonError, KeyError, TypeError, ValueError):
        return evidence
    p_value = controls.p_value(mark["matched"], mark["alternatives"])
    evidence["watermark"] = plain({**mark, "controls": controls.to_dict(), "p_value": p_value})
    answers = answers_of(evidence)
    verdict = decide(answers, unusual_options(evidence["options"]))
    evidence["answers"] = plain(asdict(answers))
    evidence["verdict"] = {"kind": verdict.kind, "reason": verdict.reason}
    return evidence


def _digests(names: Any) -> dict[str, str]:
    return {name: value for name, value in (names or {}).items() if name not in ("file", "name")}


_ABSENT: Final = object()


def _fields(name: str, said: Any, found: Any, drawn: tuple[str, ...]) -> Iterator[Field]:
    """Every leaf of a part."""
    if isinstance(said, Mapping) and isinstance(found, Mapping):
        for key in dict.fromkeys((*said, *found)):
            yield from _fields(f"{name}.{key}", said.get(key, _ABSENT), found.get(key, _ABSENT), drawn)
    elif isinstance(said, list) and isinstance(found, list):
        for index, (one, other) in enumerate(zip_longest(said, found, fillvalue=_ABSENT)):
            yield from _fields(f"{name}[{index}]", one, other, drawn)
    else:
        word = _word(name, said, found, rough=name.startswith(drawn))
        shown = [None if value is _ABSENT else value for value in (said, found)]
        yield Field(name, word, *shown) if word != "same" else Field(name, word)


def _word(name: str, said: Any, found: Any, *, rough: bool) -> Word:
    if said is _ABSENT or found is _ABSENT or isinstance(said, bool) or isinstance(found, bool):
        return "same" if said is found else "differs"
    if said == found and type(said) is type(found):
        return "same"
    if isinstance(said, int | float) and isinstance(found, int | float):
        return "near" if _near(name, said, found, rough=rough) else "differs"
    if isinstance(said, str) and isinstance(found, str) and _NUMBER.sub("0", said) == _NUMBER.sub("0", found):
        pairs = zip(_numbers(said), _numbers(found), strict=True)
        return "near" if all(_near(name, one, other, rough=rough) for one, other in pairs) else "differs"
    return "differs"


def _near(name: str, said: float, found: float, *, rough: bool) -> bool:
    if name.rsplit(".", 1)[-1] in RELATIVE:
        if rough and said > 0 and found > 0:
            return isclose(log(said), log(found), rel_tol=ROUGH)
        return isclose(said, found, rel_tol=FLOAT, abs_tol=1e-300)
    if isinstance(said, int) and isinstance(found, int):
        # A control more or less, and nothing else that is counted.
        return rough and isclose(said, found, rel_tol=ROUGH, abs_tol=4)
    return isclose(said, found, rel_tol=ROUGH if rough else FLOAT, abs_tol=0.05 if rough else FLOAT)


def _numbers(text: str) -> list[float]:
    return [float(found.rstrip("%").replace(",", "")) for found in _NUMBER.findall(text)]
