"""Steps by name, and the text that asks for one: `name`, `name=value`, or `name:setting=value,setting=value`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import Field, fields
from typing import Any, Final

from canon.attacks.after.casting import BFloat16, Float16
from canon.attacks.after.finetune import Finetune
from canon.attacks.after.interface import Step
from canon.attacks.after.noise import Noise
from canon.attacks.after.prune import Prune
from canon.attacks.after.rounding import Round
from canon.errors import AttackError, choices

_STEPS: Final[dict[str, type[Step]]] = {step.name: step for step in (Noise, Prune, Round, Float16, BFloat16, Finetune)}


def names() -> tuple[str, ...]:
    """Every step that can be asked for.

    >>> names()
    ('noise', 'prune', 'round', 'float16', 'bfloat16', 'finetune')
    """
    return tuple(_STEPS)


def as_steps(after: Iterable[str | Step]) -> tuple[Step, ...]:
    """Steps, given as such or as texts."""
    given = (after,) if isinstance(after, (str, Step)) else after
    return tuple(step if isinstance(step, Step) else parse(step) for step in given)


def parse(text: str) -> Step:
    """The step that a text asks for.

    >>> parse("noise:relative=0.2")
    Noise(relative=0.2, absolute=0.0)
    >>> parse("round=8").spec
    'round'
    """
    head, _, tail = str(text).partition(":")
    name, equals, value = head.partition("=")
    if name not in _STEPS:
        raise AttackError(f"no step '{name}'", hint=choices(name, _STEPS))
    settings = {field.name: field for field in fields(_STEPS[name]) if field.repr}
    pairs = [part.partition("=") for part in tail.split(",")] if tail else []
    if equals:
        pairs.insert(0, (next(iter(settings), ""), "=", value))
    values: dict[str, Any] = {}
    for key, _, written in pairs:
        if key not in settings or key in values:
            wrong = "is given twice" if key in values else "is no setting"
            raise AttackError(f"'{key or value}' {wrong} of the step '{name}'", hint=choices(key, settings))
        values[key] = _read(name, settings[key], written)
    return _STEPS[name](**values)


def _read(step: str, field: Field[Any], written: str) -> Any:
    kind: Any = type(field.default)
    try:
        return kind(written)
    except ValueError as error:
        raise AttackError(
            f"the setting '{field.name}' of the step '{step}' is a {kind.__name__}, got '{written}'"
        ) from error
