"""The attack's log: what was asked for, and what every channel became."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import torch

from canon._version import __version__
from canon.attacks import registry
from canon.attacks.channels import Kind
from canon.attacks.interface import Preserves
from canon.attacks.options import AttackOptions
from canon.attacks.plan import AttackPlan, SpacePlan
from canon.errors import FileFormatError

FORMAT: Final = 2
"""Format 1 is read as well: it lacks fields that have defaults."""

_NAMES: Final[dict[int, str]] = {kind: kind.name.lower() for kind in Kind if kind != Kind.LIVE}


@dataclass(frozen=True)
class SpaceLog:
    """What one space became."""

    name: str
    """The space, as the channel graph names it."""

    layers: tuple[str, ...]
    """The layers that make its channels."""

    before: int
    """Channels before."""

    after: int
    """Channels after."""

    groups: int
    """Equal blocks that the attack kept apart."""

    sequence: tuple[str, ...]
    """Primitives, in order."""

    kinds: tuple[str, ...]
    """What each channel is: original, copy, part (of a replaced channel), or a `Kind` of dummy in small letters."""

    origins: tuple[int, ...]
    """The original channel of an original, a copy or a part; for dummies a number from `before` on, one for a clique
    or group."""

    scaled: bool
    """Whether its channels were scaled somewhere."""

    skipped: dict[str, str] = field(default_factory=dict)
    """Primitives that could do nothing here, with the reason."""

    @property
    def injected(self) -> int:
        """Channels added."""
        return self.after - self.before


@dataclass(frozen=True)
class StepLog:
    """What one step after the injection did."""

    step: str
    """The step, as it can be asked for again."""

    change: float
    """How far it moved the outputs on probes, relative to the largest."""


@dataclass(frozen=True)
class AttackLog:
    """Everything that is needed to do an attack again, or to score a recovery from it."""

    options: AttackOptions
    spaces: tuple[SpaceLog, ...]
    """Attacked spaces, in execution order."""

    pinned: dict[str, str]
    """Spaces that were left alone because they must stay, with the reason."""

    unselected: tuple[str, ...]
    """Free spaces that the options left out."""

    kernels: tuple[str, ...]
    """Weights whose kernels grew."""

    parameters: int
    """Number of parameters of the attacked model."""

    versions: dict[str, str]
    """Of Canon and torch."""

    preserves: Preserves = "function"
    """What the injection keeps: the function but for rounding, but for a little, or its values on probes alone."""

    change: float | None = None
    """How far injection moved the outputs on probes, relative to the largest; None where it keeps the function."""

    after: tuple[StepLog, ...] = ()
    """What was done to the weights afterwards."""

    def to_json(self) -> str:
        """As one JSON document."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @staticmethod
    def from_json(text: str) -> AttackLog:
        """Read what `to_json` wrote."""
        try:
            data: dict[str, Any] = json.loads(text, object_hook=_with_tuples)
            found = data.pop("format")
            if found not in (1, FORMAT):
                raise FileFormatError(f"the attack log has format {found}, this version reads {FORMAT}")
            spaces = tuple(SpaceLog(**space) for space in data.pop("spaces"))
            after = tuple(StepLog(**step) for step in data.pop("after", ()))
            return AttackLog(after=after, options=AttackOptions(**data.pop("options")), spaces=spaces, **data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileFormatError(f"this is not an attack log: {error}") from error


def _with_tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}


def write_log(plan: AttackPlan, options: AttackOptions, parameters: int) -> AttackLog:
    """Write a plan down."""
    graph = plan.graph
    return AttackLog(
        options=options,
        spaces=tuple(_space_log(plan, plan.spaces[s.id]) for s in graph.spaces if s.id in plan.spaces),
        pinned={s.name: s.pinned for s in graph.spaces if s.pinned is not None},
        unselected=tuple(s.name for s in graph.free if s.id not in plan.spaces),
        kernels=tuple(sorted(plan.kernels)),
        parameters=parameters,
        versions={"canon": __version__, "torch": torch.__version__},
        preserves=kept(planned.sequence for planned in plan.spaces.values()),
    )


def kept(sequences: Iterable[tuple[str, ...]]) -> Preserves:
    """What all these primitives together keep."""
    words = {registry.get(name).preserves for sequence in set(sequences) for name in sequence}
    return "on data" if "on data" in words else "nearly" if "nearly" in words else "function"


def _space_log(plan: AttackPlan, planned: SpacePlan) -> SpaceLog:
    origins: list[int] = planned.channels.origin.flatten().tolist()
    kinds = planned.kind.tolist()
    copies = Counter(origins)
    whole = (planned.channels.units.own[planned.channels.unit.flatten()] == 1).tolist()
    words = [
        _NAMES[kind] if kind in _NAMES else "part" if not own else "original" if copies[origin] == 1 else "copy"
        for kind, origin, own in zip(kinds, origins, whole, strict=True)
    ]
    return SpaceLog(
        name=planned.space.name,
        layers=tuple(dict.fromkeys(plan.graph.maps[p.map].name for p in planned.space.producers)),
        before=planned.space.width,
        after=planned.after,
        groups=planned.space.groups,
        sequence=planned.sequence,
        kinds=tuple(words),
        origins=tuple(origins),
        scaled=bool(planned.gains),
        skipped=dict(planned.skipped),
    )
