"""What the benchmark can measure: one frozen class per kind of case, made of plain values.

A case says all that decides its outcome, so that it can be sent to another machine, named, and measured again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from canon.bench.extensions import part_of
from canon.errors import BenchError, choices

if TYPE_CHECKING:
    from torch import Tensor, nn

    from canon.attacks import AttackOptions

TWIN: Final = "twin"
"""In place of a scheme: a model trained in the same way without a mark."""

CLEAN: Final = "clean"
"""In place of an attack: none."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is measured; its fields say on what."""

    kind: ClassVar[str]
    """How suites and records call this kind."""

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
        return "-".join(parts).translate(str.maketrans(":/ ", "___"))

    @property
    def values(self) -> dict[str, Any]:
        """The case as a JSON object."""
        return {"kind": self.kind, **asdict(self)}

    @property
    def shared(self) -> object:
        """What is made once for all cases that have an equal one; a process measures these one after the other."""
        return None

    @property
    def trainings(self) -> tuple[Training, ...]:
        """Every trained model that it needs."""
        return ()

    def check(self) -> None:
        """Raise an error if it names something that does not exist."""


@dataclass(frozen=True, kw_only=True)
class OfTrained(Case):
    """A case about a trained model."""

    dataset: str
    """Name of a dataset of the zoo."""

    model: str
    """Name of an architecture of the zoo."""

    scheme: str
    """Name of a watermarking scheme."""

    seed: int = 0
    """Seed of the training: weights, secrets, order of images."""

    @property
    def training(self) -> Training:
        """The model that it is about."""
        return Training(dataset=self.dataset, model=self.model, scheme=self.scheme, seed=self.seed)

    @property
    def stranger(self) -> Training:
        """Somebody else's model: the same architecture and data, from another start, with no mark of ours."""
        return Training(dataset=self.dataset, model=self.model, scheme=TWIN, seed=self.seed + 1)

    @property
    def shared(self) -> object:
        """See `Case`."""
        return self.training

    @property
    def trainings(self) -> tuple[Training, ...]:
        """See `Case`."""
        return (self.training,)

    def check(self) -> None:
        """See `Case`."""
        from canon import watermarks, zoo

        one_of("dataset", self.dataset, zoo.dataset_names())
        if self.scheme != TWIN or not isinstance(self, Training):
            one_of("scheme", self.scheme, watermarks.names())
        zoo.input_size(self.model)


def one_of(what: str, name: str, known: tuple[str, ...]) -> None:
    """Raise an error for a name that is not known."""
    if name not in known:
        raise BenchError(f"no {what} is called '{name}'", hint=choices(name, known))


@dataclass(frozen=True, kw_only=True)
class Training(OfTrained):
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
class Attacked(OfTrained):
    """A case about an attacked model."""

    attack: str
    """A primitive, or a way to sample a sequence of them."""

    ratio: float
    """ρ: share of channels that are added."""

    attack_seed: int = 0
    """Seed of the attack."""

    def check(self) -> None:
        """See `Case`; an attack must exist as well."""
        from canon.attacks.options import MIX
        from canon.attacks.registry import get

        super().check()
        if self.attack not in MIX:
            get(self.attack)

    def attack_options(self, model: nn.Module, example: Tensor) -> AttackOptions:
        """How the attack is carried out."""
        from canon.attacks import AttackOptions

        return AttackOptions(ops=(self.attack,), ratio=self.ratio, seed=self.attack_seed)


@dataclass(frozen=True, kw_only=True)
class Camouflaged(Attacked):
    """A case about a model that our own attack hid."""

    camouflage: bool = True
    """Whether channels are also permuted and scaled."""

    def attack_options(self, model: nn.Module, example: Tensor) -> AttackOptions:
        """How the attack is carried out."""
        return replace(super().attack_options(model, example), permute=self.camouflage, scale=self.camouflage)


@dataclass(frozen=True, kw_only=True)
class Recovery(Camouflaged):
    """Attack, recover, align, certify, and read the mark at every step."""

    kind: ClassVar[str] = "recovery"

    @property
    def trainings(self) -> tuple[Training, ...]:
        """The owner's model and a stranger's."""
        return self.training, self.stranger


def read_case(values: Mapping[str, Any]) -> Case:
    """The case that `Case.values` gave.

    >>> read_case(Training(dataset="digits", model="resnet18", scheme="greedy").values).scheme
    'greedy'
    """
    given = dict(values)
    kind = given.pop("kind", None)
    cls = part_of(kind, "case")
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
        case: Case = cls(**given)
    except TypeError as error:
        raise BenchError(f"a case of kind '{kind}' is incomplete: {error}") from error
    return case
