"""From what was found to one word, the weaker one where there is doubt."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from torch import Tensor, nn

from canon.containment.agreement import Agreement
from canon.containment.location import Answer, LocatedLayer, LocatedSpace, Location, Span, Start, Updates

CLOSE: Final = 1e-3
"""Residuals and differences of outputs up to which the owner's numbers are still there."""

AGREED: Final = 1e-2
"""Largest difference of outputs that agree, relative to how far they move."""

DERIVED: Final = 0.3
"""Coverage beyond the first layers from which on it is no accident; strangers stay below 0.01."""

SPANNED: Final = 0.5
"""Share of the channels tested that must be linear images of the suspect's; strangers have none."""

STRANGER: Final = 0.03
"""Coverage beyond the first layers up to which a suspect is what a stranger would be."""

TELLING: Final = 0.95
"""Layers in which chance reaches this cosine cannot tell a stranger."""

ENOUGH: Final = 16
"""Channels beyond the first layers, in layers that can tell, that a word needs to rest on."""

SAME_UPDATE: Final = 0.97
"""Cosine of updates from which on the suspect has what the owner added. Innocents who fine-tune with the owner's own
images and rates were seen at up to 0.954, one that hardly learned at 0.975; thieves who train on mildly from 0.972."""

OTHERS: Final = 1.2
"""Rows that are farther from the owner's, relative to their size, are others: 1.4 is usual where nothing is shared."""

ANCESTOR: Final = "a common ancestor of both would explain this as well; give it as an ancestor if there is one"


@dataclass(frozen=True, eq=False)
class Findings:
    """All that the word rests on."""

    model: nn.Module
    layers: tuple[LocatedLayer, ...]
    spaces: tuple[LocatedSpace, ...]
    silent: Mapping[str, Tensor]
    """By space: the owner's channels that never change."""

    first: frozenset[str]
    """Spaces that are made from the model's input alone."""

    agreement: Agreement
    owner: Agreement | None
    """Between the extracted model and the owner's, where that is at hand."""

    updates: tuple[Updates, ...] = ()
    notes: tuple[str, ...] = ()
    seed: int = 0
    refitted: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    close: float = CLOSE
    """Residuals up to which the owner's numbers are still there: `CLOSE`, or what the coarser float type allows."""

    foreign: tuple[str, ...] = ()
    """Spaces that are another network's, whatever order, scales, signs or basis they stand in."""

    start: Start | None = None
    """Where a common start explains what was found, the figures that show it."""


@dataclass(frozen=True)
class _Counts:
    channels: int
    found: int
    distinct: int
    telling: int
    """Channels in layers that can tell a stranger."""

    told: int
    """Those of them that were found distinctly."""

    @property
    def share(self) -> float:
        return self.distinct / self.channels if self.channels else 0.0

    @property
    def evidence(self) -> float:
        """Share of the channels that can tell a stranger that were found distinctly."""
        return self.told / self.telling if self.telling else 0.0


def decide(findings: Findings) -> Location:
    """The answer, with everything that it rests on."""
    everywhere, deep = _count(findings, first=True), _count(findings, first=False)
    answer, reason = _word(findings, everywhere, deep)
    return Location(
        answer=answer,
        reason=reason,
        coverage=everywhere.share,
        deep=deep.evidence,
        agreement=findings.agreement,
        owner_agreement=findings.owner,
        model=findings.model,
        layers=findings.layers,
        spaces=findings.spaces,
        refitted=findings.refitted,
        spans=findings.spans,
        ancestors=findings.updates,
        notes=findings.notes,
        seed=findings.seed,
    )


def _count(findings: Findings, *, first: bool) -> _Counts:
    channels = found = distinct = telling = told = 0
    for space in findings.spaces:
        if space.name in findings.first and not first:
            continue
        heard = ~findings.silent[space.name]
        number = int(heard.sum())
        channels += number
        found += int((space.found & heard).sum())
        distinct += int((space.distinct & heard).sum())
        here = int((space.distinct & heard).sum())
        if space.chance < 1:
            # Where chance comes near, only what agrees beyond it tells anything; rows that fit everybody never do.
            telling += number if space.chance < TELLING else here
            told += here
    return _Counts(channels, found, distinct, telling, told)


def _word(findings: Findings, everywhere: _Counts, deep: _Counts) -> tuple[Answer, str]:
    many = f"{everywhere.distinct:,} of {everywhere.channels:,} of the owner's channels were found distinctly"
    if findings.start is not None:
        return "not decided", (
            f"{everywhere.found:,} of {everywhere.channels:,} of the owner's channels are like some of the suspect's, "
            f"but they differ by {findings.start.changed**0.5:.1%} of their size in directions that many share, "
            "as only training makes them: two networks trained apart from the same first weights, or from one public "
            "model, would agree as far"
        )
    if deep.telling < ENOUGH:
        if findings.owner is not None and _short_of_contained(findings, everywhere) is None:
            return "contained", "every channel of the owner's was found, and the suspect computes what the owner's does"
        return "not decided", f"{many}, but the network has too few channels beyond its first layers to tell a stranger"
    if deep.evidence < DERIVED and _spanned(findings) >= SPANNED:
        count, tested = sum(span.spanned for span in findings.spans), sum(span.channels for span in findings.spans)
        if not findings.updates:
            return (
                "derived",
                f"{many}; {count:,} of {tested:,} are linear images of what the suspect computes; {ANCESTOR}",
            )
        return "not decided", (
            f"{many}; {count:,} of {tested:,} are linear images of what the suspect computes, but rows that have no "
            "counterpart cannot be compared with the ancestor's"
        )
    if deep.evidence < DERIVED and deep.telling < deep.channels / 2:
        return "not decided", (
            f"{many}, but {deep.channels - deep.telling:,} of {deep.channels:,} beyond the first layers are described "
            "by too few numbers to tell a changed copy from a stranger; a robust key or the owner's model has more"
        )
    if deep.evidence <= STRANGER and not findings.foreign:
        return "not decided", (
            f"{many}, as in a stranger; but channels that were turned, mixed or given other signs would look the same "
            "here, and nothing shows that they are another network's"
        )
    if deep.evidence <= STRANGER:
        return "unrelated", f"{many}, {deep.distinct:,} of {deep.channels:,} beyond the first layers, as in a stranger"
    if deep.evidence < DERIVED:
        return (
            "not decided",
            f"{many}, {deep.evidence:.0%} beyond the first layers: more than in strangers, not enough",
        )
    if findings.updates:
        least = min(update.cosine for update in findings.updates)
        if not least >= SAME_UPDATE:
            return "not decided", (
                f"{many}, but what the owner added to the ancestor and what the suspect did agree to {least:.2f} only, "
                f"and {SAME_UPDATE} is needed: the common ancestor explains the rest"
            )
        tail = f"; updates of the ancestor agree to {least:.2f}"
    else:
        tail = f"; {ANCESTOR}"
    if _usual_residual(findings.layers) > OTHERS:
        return (
            "not decided",
            f"{many}, but by what is known exactly of them they are nothing like the owner's",
        )
    against = _short_of_contained(findings, everywhere)
    if against is None:
        return "contained", f"every channel of the owner's was found, and the rest of the suspect does nothing{tail}"
    return "derived", f"{many}; {against}{tail}"


def _usual_residual(layers: Sequence[LocatedLayer]) -> float:
    """The median residual over layers, or over their channels if that is less: one space may have many layers."""
    found = sorted((layer.median, layer.found) for layer in layers if layer.found)
    if not found:
        return 0.0
    channels = list(accumulate(count for _, count in found))
    return min(found[len(found) // 2][0], found[bisect_right(channels, channels[-1] // 2)][0])


def _spanned(findings: Findings) -> float:
    """Share of the channels tested beyond the first layers that are linear images of the suspect's."""
    deep = [span for span in findings.spans if span.name not in findings.first]
    tested = sum(span.channels for span in deep)
    return sum(span.spanned for span in deep) / tested if tested >= ENOUGH else 0.0


def _short_of_contained(findings: Findings, everywhere: _Counts) -> str | None:
    """What keeps the owner's network from being contained as it is; None: nothing."""
    if everywhere.distinct < everywhere.channels:
        return f"{everywhere.channels - everywhere.distinct:,} were not"
    if findings.refitted:
        return f"the columns of {len(findings.refitted)} layers had to be refitted"
    worst = max((layer.worst for layer in findings.layers if layer.found), default=0.0)
    if not worst <= findings.close:
        return f"they were changed by up to {worst:.2g} of their size"
    if not findings.agreement.difference <= AGREED:
        return f"the extracted model differs from the suspect by {findings.agreement.difference:.2g}"
    if findings.owner is not None and not findings.owner.difference <= AGREED:
        return f"the extracted model differs from the owner's by {findings.owner.difference:.2g}"
    return None
