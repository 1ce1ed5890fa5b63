"""Cases about models that were trained."""

from __future__ import annotations

import random
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, Final

from canon.bench.cases import CLEAN, Attacked, Camouflaged, Case, OfTrained, Training, one_of

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canon.attacks import AttackOptions
    from canon.graph import ChannelGraph
    from canon.recovery import ProbeOptions

UNCHANGED: Final = "nothing"
"""In place of a step after a disguise: none."""

STYLES: Final = ("paper", "stronger")
"""Of a case of kind `methods`."""

CANON_METHODS: Final = ("canon-exact", "canon-probe")
"""Ours, as the baselines are called."""


@dataclass(frozen=True, kw_only=True)
class Methods(Attacked):
    """One attack, undone by every method, none of which is told the clean widths."""

    kind: ClassVar[str] = "methods"

    style: str = "paper"
    """`paper`: as the paper describes it (no dummy reads a dummy, zero dummies are zero where they come in, one place
    is scaled); `stronger`: all that our attack does by default."""

    def check(self) -> None:
        """See `Case`."""
        super().check()
        one_of("style of attack", self.style, STYLES)

    def attack_options(self, model: nn.Module, example: Tensor) -> AttackOptions:
        """How the attack is carried out."""
        from canon.graph import trace

        common = super().attack_options(model, example)
        if self.style != "paper":
            return common
        anchor = drawn_anchor(trace(model, example), self.attack_seed)
        return replace(common, chain=False, zero_form="in", scale=anchor is not None, anchor=anchor)


@dataclass(frozen=True, kw_only=True)
class Sensitivity(Methods):
    """One attack, undone by the probe method with one of its parameters changed."""

    kind: ClassVar[str] = "sensitivity"

    parameter: str
    """A field of `canon.recovery.ProbeOptions`."""

    value: float
    """What it is set to; all others keep their defaults."""

    def check(self) -> None:
        """See `Case`."""
        super().check()
        self.probe_options()

    def probe_options(self) -> ProbeOptions:
        """The parameters of the method."""
        from canon.recovery import ProbeOptions

        defaults = ProbeOptions()
        known = tuple(
            field.name for field in fields(defaults) if isinstance(getattr(defaults, field.name), int | float)
        )
        one_of("parameter of the probe method", self.parameter, known)
        wanted = type(getattr(defaults, self.parameter))
        return replace(defaults, **{self.parameter: wanted(self.value)})


def drawn_anchor(graph: ChannelGraph, seed: int) -> str | None:
    """The one place that is scaled: any that lets a scale pass; None where there is none."""
    places = [
        space.name
        for space in graph.free
        if space.producers and any(tap not in graph.fixed_taps for tap in graph.space_taps(space))
    ]
    return random.Random(seed).choice(places) if places else None


@dataclass(frozen=True, kw_only=True)
class Tolerance(Camouflaged):
    """The certificate at several tolerances, against the owner's model and against a stranger's."""

    kind: ClassVar[str] = "tolerance"

    @property
    def trainings(self) -> tuple[Training, ...]:
        """The owner's model and a stranger's."""
        return self.training, self.stranger


@dataclass(frozen=True, kw_only=True)
class Changed(Camouflaged):
    """A disguise, then a change of the weights: what is found of the owner's network, and what is answered."""

    kind: ClassVar[str] = "changed"

    after: str = UNCHANGED
    """A step of `canon.attacks.after`, or `nothing`."""

    def check(self) -> None:
        """See `Case`."""
        from canon.attacks.after import parse

        super().check()
        if self.after != UNCHANGED:
            parse(self.after)


@dataclass(frozen=True, kw_only=True)
class Clean(OfTrained):
    """Recover a model that nobody attacked: nothing must change."""

    kind: ClassVar[str] = "clean"

    method: str = "exact"
    """How channels are compared: `exact` or `probe`."""

    def check(self) -> None:
        """See `Case`."""
        super().check()
        _check_method(self.method)


@dataclass(frozen=True, kw_only=True)
class Runtime(Camouflaged):
    """How long recovery takes; `attack` may be `clean`."""

    kind: ClassVar[str] = "runtime"

    method: str = "exact"
    """How channels are compared: `exact` or `probe`."""

    probes: int = 0
    """T of the probe method; 0 for the exact one."""

    batch: int = 0
    """Probes per forward pass; 0 for the exact one."""

    repeats: int = 3
    """Recoveries that are timed, after one that is not."""

    def check(self) -> None:
        """See `Case`."""
        if self.attack == CLEAN:
            OfTrained.check(self)
        else:
            super().check()
        _check_method(self.method)


def _check_method(name: str) -> None:
    from canon.recovery.pipeline import METHODS

    one_of("recovery method", name, METHODS)


@dataclass(frozen=True, kw_only=True)
class Baseline(Camouflaged):
    """What one defence makes of an attacked model."""

    kind: ClassVar[str] = "baseline"

    method: str
    """`canon-exact`, `canon-probe`, or a name of `canon_benchmarks.baselines`."""

    def check(self) -> None:
        """See `Case`."""
        from canon_benchmarks.baselines import BASELINES

        super().check()
        one_of("defence", self.method, (*CANON_METHODS, *BASELINES))


@dataclass(frozen=True, kw_only=True)
class Relative(Case):
    """A stranger, an innocent, a thief or a copy, trained, and held against an owner's model."""

    kind: ClassVar[str] = "relative"

    dataset: str
    """Name of a dataset of the zoo; on CIFAR there is a public ancestor."""

    model: str
    """Name of an architecture of the zoo, or of a small network of `schooling.SMALL`."""

    who: str
    """One of `schooling.WHO`."""

    seed: int = 0
    """Tells apart who is of the same sort."""

    @property
    def shared(self) -> object:
        """See `Case`."""
        return self.dataset, self.model

    def check(self) -> None:
        """See `Case`."""
        from canon import zoo
        from canon_benchmarks.schooling import SMALL, WHO

        one_of("dataset", self.dataset, zoo.dataset_names())
        one_of("sort of relative", self.who, WHO)
        if self.model not in SMALL:
            zoo.input_size(self.model)


@dataclass(frozen=True, kw_only=True)
class Drift(OfTrained):
    """The owner's model changed and then disguised, or a stranger's: how far it is aligned, and what is left of it."""

    kind: ClassVar[str] = "drift"

    change: str
    """What is done before the disguise: a step of `canon.attacks.after`, `nothing`, a rate of fine-tuning such as
    `rate 0.001`, or `stranger`: another model, trained from another start."""

    steps: int = 60
    """Of fine-tuning, or of a stranger's training."""

    other: int = 0
    """Which stranger."""

    def check(self) -> None:
        """See `Case`."""
        from canon.attacks.after import parse

        super().check()
        if self.change not in (UNCHANGED, "stranger") and not self.change.startswith("rate "):
            parse(self.change)
