"""What a verb is: its examples, which tests run, and options that belong together as one parameter.

A group is a frozen dataclass whose fields are options. `verb` gives typer a function with a parameter for every
option, and calls the verb with the groups:

    @dataclass(frozen=True, kw_only=True)
    class ReadOptions:
        arch: Architecture = None
        size: Size = None

    @verb("canon inspect resnet18")
    def inspect(model: Model, reading: ReadOptions) -> None: ...
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, final, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

VALUES: Final = {str: "TEXT", int: "NUMBER", float: "NUMBER", Path: "FILE"}
"""What help calls the value of an option that has no word of its own."""


def verb(*lines: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A verb in the form that typer reads, with whole commands as its examples."""
    return lambda function: _verb(function, examples(*lines))


def _verb(function: Callable[..., None], epilog: str) -> Callable[..., None]:
    groups: dict[str, Any] = {}
    parameters = []
    hints = get_type_hints(function, include_extras=True)
    for name, parameter in inspect.signature(function).parameters.items():
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
        function(**given, **made)

    call.__name__, call.__doc__ = function.__name__, function.__doc__
    call.epilog = epilog  # type: ignore[attr-defined]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


WIDTH: Final = 74
"""Characters of a line: help is read on 80 columns, and indents."""


def examples(*lines: str) -> str:
    r"""The end of a verb's help: whole commands, which help leaves as they are (`\b` says so).

    >>> print(examples("canon inspect resnet18", "canon inspect suspect.onnx --json").replace("\b", ""))
    <BLANKLINE>
    Examples:
      canon inspect resnet18
      canon inspect suspect.onnx --json
    """
    return "\n".join(["\b", "Examples:", *("  " + _folded(line) for line in lines)])


def _folded(line: str) -> str:
    together = re.sub(r"( -\S+) (?!-)", "\\1\xa0", line)  # an option and its value
    parts = textwrap.wrap(together, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return " \\\n  ".join(parts).replace("\xa0", " ")


@final
class PlainCommand(TyperCommand):
    """A verb whose help calls arguments by their names alone: `MODEL`, not `{MODEL}` and `MODEL <str>`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments. None may be empty, as an empty path is the folder that the user is in; `-` is no file."""
        for before, word in pairwise(["", *args]):
            if word == "-":
                raise typer.BadParameter("'-' is no file: Canon reads and writes those that have a name", ctx=ctx)
            if not word or re.fullmatch(r"--[\w-]+=", word):
                what = word.removesuffix("=") or (before if before.startswith("-") else "an argument")
                raise typer.BadParameter(
                    f"{what} is given an empty text; is a variable of your shell not set?", ctx=ctx
                )
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line."""
        return [re.sub(r"^\{(\w+)\}", r"\1", piece) for piece in super().collect_usage_pieces(ctx)]

    def get_help(self, ctx: Any) -> str:
        """The whole help; columns stay where they are."""
        return re.sub(r"^(  [A-Z]+)( <\S+>)", lambda row: row[1] + " " * len(row[2]), super().get_help(ctx), flags=re.M)


def plain_help(application: typer.Typer) -> None:
    """Have every verb listed with a whole sentence, and every value called by a plain word."""
    for command in application.registered_commands:
        verb: Any = command.callback
        command.cls, command.epilog = PlainCommand, verb.epilog
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
