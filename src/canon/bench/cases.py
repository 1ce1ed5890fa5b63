"""What the benchmark can measure: one frozen class per kind of case, made of plain values.

A case says all that decides its outcome, so that it can be sent to another machine, named, and measured again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Final

from canon.errors import BenchError

TWIN: Final = "twin"
"""In place of a scheme: a model trained in the same way without a mark."""

CLEAN: Final = "clean"
"""In place of an attack: none."""


UNCHANGED: Final = "nothing"
"""In place of a step after a disguise: none."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A trained model, and what is measured on it."""

    kind: ClassVar[str]
    """How suites and records call this kind."""

    dataset: str
    """Name of a dataset of the zoo."""

    model: str
    """Name of an architecture of the zoo."""

    scheme: str
    """Name of a watermarking scheme."""

    seed: int = 0
    """Seed of the training: weights, secrets, order of images."""

    @property
    def name(self) -> str:
        """A name that tells the case from all others, fit for a file.

        >>> Recovery(dataset="digits", model="resnet18", scheme="greedy", attack="nso_zero", ratio=0.2).name
        'recovery-digits-resnet18-greedy-0-nso_zero-0.2-0-camouflage'
        """
        parts = [self.kind]
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool):
                parts.append(field.name if value else f"no_{field.name}")
            else:
                parts.append(f"{value:g}" if isinstance(value, float) else str(value))
        return "-".join(parts).replace(":", "_").replace("/", "_")

    @property
    def values(self) -> dict[str, Any]:
        """The case as a JSON object."""
        return {"kind": self.kind, **asdict(self)}

    @property
    def training(self) -> Training:
        """The model that it is about."""
        return Training(dataset=self.dataset, model=self.model, scheme=self.scheme, seed=self.seed)

    @property
    def stranger(self) -> Training:
        """Somebody else's model: the same architecture and data, from another start, with no mark of ours."""
        return Training(dataset=self.dataset, model=self.model, scheme=TWIN, seed=self.seed + 1)

    @property
    def trainings(self) -> tuple[Training, ...]:
        """Every trained model that it needs."""
        return (self.training,)


@dataclass(frozen=True, kw_only=True)
class Training(Case):
    """Embed a mark by training, and hold the model against its unmarked twin."""

    kind: ClassVar[str] = "training"

    @property
    def twin(self) -> Training:
        """The same without a mark."""
        return Training(dataset=self.dataset, model=self.model, scheme=TWIN, seed=self.seed)

    @property
    def trainings(self) -> tuple[Training, ...]:
        """The twin first."""
        return (self,) if self.scheme == TWIN else (self.twin, self)


@dataclass(frozen=True, kw_only=True)
class Attacked(Case):
    """A case about an attacked model."""

    attack: str
    """A primitive, or a way to sample a sequence of them."""

    ratio: float
    """ρ: share of channels that are added."""

    attack_seed: int = 0
    """Seed of the attack."""


@dataclass(frozen=True, kw_only=True)
class Methods(Attacked):
    """One attack, undone by every method, none of which is told the clean widths."""

    kind: ClassVar[str] = "methods"

    style: str = "paper"
    """`paper`: as the paper describes it (no dummy reads a dummy, zero dummies are zero where they come in, one place
    is scaled); `stronger`: all that our attack does by default."""


STYLES: Final = ("paper", "stronger")
"""Of a case of kind `methods`."""


@dataclass(frozen=True, kw_only=True)
class Camouflaged(Attacked):
    """A case about a model that our own attack hid."""

    camouflage: bool = True
    """Whether channels are also permuted and scaled."""


@dataclass(frozen=True, kw_only=True)
class Recovery(Camouflaged):
    """Attack, recover, align, certify, and read the mark at every step."""

    kind: ClassVar[str] = "recovery"

    @property
    def trainings(self) -> tuple[Training, ...]:
        """The owner's model and a stranger's."""
        return self.training, self.stranger


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


@dataclass(frozen=True, kw_only=True)
class Clean(Case):
    """Recover a model that nobody attacked: nothing must change."""

    kind: ClassVar[str] = "clean"

    method: str = "exact"
    """How channels are compared: `exact` or `probe`."""


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


@dataclass(frozen=True, kw_only=True)
class Baseline(Camouflaged):
    """What one defence makes of an attacked model."""

    kind: ClassVar[str] = "baseline"

    method: str
    """`canon-exact`, `canon-probe`, or a name of `canon.bench.baselines`."""


KINDS: Final[Mapping[str, type[Case]]] = {
    kind.kind: kind for kind in (Training, Recovery, Methods, Tolerance, Changed, Clean, Runtime, Baseline)
}
"""By name."""


def read_case(values: Mapping[str, Any]) -> Case:
    """The case that `Case.values` gave.

    >>> read_case(Training(dataset="digits", model="resnet18", scheme="greedy").values).scheme
    'greedy'
    """
    given = dict(values)
    kind = given.pop("kind", None)
    if kind not in KINDS:
        raise BenchError(f"no kind of case is called '{kind}'", hint=f"Known: {', '.join(KINDS)}")
    cls = KINDS[kind]
    known = {field.name: field for field in fields(cls)}
    for name in given:
        if name not in known:
            raise BenchError(f"a case of kind '{kind}' has no '{name}'", hint=f"It has: {', '.join(known)}")
    for name, value in given.items():
        wanted = str(known[name].type)
        if wanted == "float" and type(value) is int:
            given[name] = float(value)
        elif type(value).__name__ != wanted:
            raise BenchError(f"'{name}' of a case of kind '{kind}' must be a {wanted}, got {value!r}")
    try:
        return cls(**given)
    except TypeError as error:
        raise BenchError(f"a case of kind '{kind}' is incomplete: {error}") from error
