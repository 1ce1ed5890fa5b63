"""The reference of the command line, from the code: `python -m canon.cli.reference > docs/cli.md`."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from typing import Any

import typer

HEAD = """# Command line

*Made from the code by `python -m canon.cli.reference`; edit the code and not this page.*
"""


def verbs() -> Iterator[tuple[str, Any]]:
    """Every verb, by all the words that call it."""
    yield from _below(_root(), "canon")


def examples_of(command: Any) -> list[str]:
    """The examples in a verb's help: commands that begin with `canon`, each in one line."""
    text = f"{command.help or ''}\n{command.epilog or ''}"
    whole = re.sub(r"\s*\\\n\s*", " ", text)
    return [line.strip() for line in whole.splitlines() if line.strip().startswith("canon ")]


def reference() -> str:
    """The page, as Markdown."""
    root = _root()
    parts = [HEAD, _prose(root.help), "## canon\n", "Options that stand before the verb:\n", _options(root)]
    for path, command in verbs():
        parts += [f"## {path}\n", _prose(command.help), f"```\n{_usage(path, command)}\n```\n"]
        parts += [_arguments(command), _options(command)]
        lines = "\n".join(examples_of(command))
        if lines:
            parts.append(f"Examples:\n\n```sh\n{lines}\n```\n")
    return "\n".join(part for part in parts if part).rstrip() + "\n"


def _root() -> Any:
    from canon.cli.main import app

    return typer.main.get_command(app)


def _below(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    for name, child in children.items():
        yield from _below(child, f"{path} {name}")


def _usage(path: str, command: Any) -> str:
    words = [path]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            words.append(_metavar(parameter) if parameter.required else f"[{_metavar(parameter)}]")
        elif parameter.required:
            words.append(f"{parameter.opts[0]} {_metavar(parameter)}")
    return " ".join([*words, "[OPTIONS]"])


def _arguments(command: Any) -> str:
    rows = [f"- `{_metavar(p)}`: {_plain(p.help)}" for p in command.params if p.param_type_name == "argument"]
    return "\n".join(rows) + "\n" if rows else ""


def _options(command: Any) -> str:
    rows = ["| option | meaning | default |", "| --- | --- | --- |"]
    for p in command.params:
        option: Any = p
        if p.param_type_name != "option" or option.hidden:
            continue
        names = ", ".join(f"`{name}`" for name in [*p.opts, *p.secondary_opts])
        value = "" if option.is_flag else f" `{_metavar(p)}`"
        rows.append(f"| {names}{value} | {_plain(option.help)} | {_default(option)} |")
    return "\n".join(rows) + "\n" if len(rows) > 2 else ""


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or ((parameter.name or "value").upper()))


def _default(option: Any) -> str:
    if option.required:
        return "required"
    value = option.default() if callable(option.default) else option.default
    if option.is_flag:
        return f"`{option.opts[0]}`" if value else ""
    return "" if value in (None, [], ()) else f"`{value}`"


def _plain(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").replace("|", "\\|").strip()


def _prose(text: str | None) -> str:
    """A verb's own words."""
    return "\n\n".join(" ".join(p.split()) for p in inspect.cleandoc(text or "").split("\n\n")) + "\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
