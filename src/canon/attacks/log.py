"""The attack's log: what was asked for, and what every channel became."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from canon._version import __version__
from canon.attacks.channels import Kind
from canon.attacks.options import AttackOptions
from canon.attacks.plan import AttackPlan, SpacePlan
from canon.errors import FileFormatError

FORMAT: Final = 1

_NAMES: Final[dict[int, str]] = {Kind.ZERO_IN: "zero_in", Kind.ZERO_OUT: "zero_out", Kind.CLIQUE: "clique"}


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
    """What each channel is: original, copy, zero_in, zero_out or clique."""

    origins: tuple[int, ...]
    """The original channel of an original or a copy; for dummies a number from `before` on, one for a whole clique."""

    scaled: bool
    """Whether its channels were scaled somewhere."""

    @property
    def injected(self) -> int:
        """Channels added."""
        return self.after - self.before


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
    """Entries of all tensors of the attacked model."""

    versions: dict[str, str]
    """Of Canon and torch."""

    def to_json(self) -> str:
        """As one JSON document."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)

    @staticmethod
    def from_json(text: str) -> AttackLog:
        """Read what `to_json` wrote."""
        try:
            data: dict[str, Any] = json.loads(text, object_hook=_with_tuples)
            found = data.pop("format")
            if found != FORMAT:
                raise FileFormatError(f"the attack log has format {found}, this version reads {FORMAT}")
            spaces = tuple(SpaceLog(**space) for space in data.pop("spaces"))
            return AttackLog(options=AttackOptions(**data.pop("options")), spaces=spaces, **data)
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
    )


def _space_log(plan: AttackPlan, planned: SpacePlan) -> SpaceLog:
    origins: list[int] = planned.channels.origin.flatten().tolist()
    kinds = planned.kind.tolist()
    copies = Counter(origins)
    words = [
        _NAMES[kind] if kind in _NAMES else "original" if copies[origin] == 1 else "copy"
        for kind, origin in zip(kinds, origins, strict=True)
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
    )
