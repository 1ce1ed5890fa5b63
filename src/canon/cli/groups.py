"""Options that belong together, as one parameter of a verb.

A group is a frozen dataclass whose fields are options. `grouped` gives typer a function with a parameter for every
option, and calls the verb with the groups:

    @dataclass(frozen=True, kw_only=True)
    class ReadOptions:
        arch: Architecture = None
        size: Size = None

    @grouped
    def inspect(model: Model, reading: ReadOptions) -> None: ...
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Final, final, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

VALUES: Final = {str: "TEXT", int: "NUMBER", float: "NUMBER", Path: "FILE"}
"""What help calls the value of an option that has no word of its own."""


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb in the form that typer reads."""
    groups: dict[str, Any] = {}
    parameters = []
    hints = get_type_hints(verb, include_extras=True)
    for name, parameter in inspect.signature(verb).parameters.items():
        kind = hints[name]
        if is_dataclass(kind):
            groups[name] = kind
            options = get_type_hints(kind, include_extras=True)
            found = {field.name: (options[field.name], field.default) for field in fields(kind)}
        else:
            found = {name: (kind, parameter.default)}
        parameters += [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for option, (annotation, default) in found.items()
        ]

    def call(**given: Any) -> None:
        made = {name: kind(**{one.name: given.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()}
        verb(**given, **made)

    call.__name__, call.__doc__ = verb.__name__, verb.__doc__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


@final
class PlainCommand(TyperCommand):
    """A verb whose help calls arguments by their names alone: `MODEL`, not `{MODEL}` and `MODEL <str>`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line."""
        return [re.sub(r"^\{(\w+)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def get_help(self, ctx: Any) -> str:
        """The whole help; columns stay where they are."""
        return re.sub(r"^(  [A-Z]+)( <\S+>)", lambda row: row[1] + " " * len(row[2]), super().get_help(ctx), flags=re.M)


def plain_help(application: typer.Typer) -> None:
    """Have every verb listed with a whole sentence, and every value called by a plain word."""
    for command in application.registered_commands:
        command.cls = PlainCommand
        verb = command.callback
        assert verb is not None, "a registered command calls something"
        command.short_help = re.split(r"(?<=\.)\s", " ".join(str(verb.__doc__).split()))[0]
        for kind in get_type_hints(verb, include_extras=True).values():
            if get_origin(kind) is Annotated and isinstance(option := kind.__metadata__[0], typer.models.OptionInfo):
                option.metavar = option.metavar or _value(kind.__origin__, option)
    for group in application.registered_groups:
        assert group.typer_instance is not None, "a group is an application"
        plain_help(group.typer_instance)


def _value(kind: Any, option: typer.models.OptionInfo) -> str | None:
    """What the value of an option is: the first type of a union or a list that has a word."""
    if kind is Path and not option.file_okay:
        return "FOLDER"
    return VALUES.get(kind) or next((word for part in get_args(kind) if (word := _value(part, option))), None)
