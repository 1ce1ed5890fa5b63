"""The options that many verbs share, so that they are spelled and explained alike everywhere.

>>> def verb(seed: Seed = 0, as_json: AsJson = False) -> None: ...
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from canon.cli import completion

if TYPE_CHECKING:
    import torch

    from canon.io import Limits


def parse_device(name: str) -> torch.device:
    """Turn a device name into a device, refusing what this machine does not have."""
    import torch

    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise typer.BadParameter(f"the device '{name}' cannot be used here; try 'cpu'") from error
    return device


def parse_size(text: str | None) -> tuple[int, ...] | None:
    """The shape of one input: the side of a square image, or all axes.

    >>> parse_size("224"), parse_size("1x28x28")
    ((224,), (1, 28, 28))
    """
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,5}(x[1-9]\d{0,5}){0,4}", text):
        raise typer.BadParameter(f"'{text}' is no size; write 224 or 3x224x224")
    return tuple(map(int, text.split("x")))


def parse_limits(changes: list[str] | None) -> Limits:
    """The limits on a file, with those that the user changes."""
    from canon.io import Limits

    limits = Limits()
    known = [field.name for field in fields(Limits)]
    for change in changes or ():
        name, _, value = change.partition("=")
        if name not in known or not value.isdecimal():
            raise typer.BadParameter(f"'{change}' is no limit; write NAME=NUMBER with one of {', '.join(known)}")
        limits = replace(limits, **{name: int(value)})
    return limits


def command_line(context: typer.Context) -> str:
    """The command that is being run, quoted so that a shell understands it again."""
    given = getattr(context.obj, "arguments", None)
    return shlex.join(["canon", *(sys.argv[1:] if given is None else given)])


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else.")]
Seed = Annotated[
    int, typer.Option("--seed", min=0, max=2**63 - 1, help="Seed of everything random; the same seed, the same result.")
]
Device = Annotated[str, typer.Option("--device", help="Where to compute: cpu, cuda, cuda:1, mps.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace the output if it exists.")]
Report = Annotated[
    Path | None, typer.Option("--report", dir_okay=False, help="Where to write a page for people to read, as HTML.")
]
EvidenceFile = Annotated[
    Path, typer.Argument(metavar="FILE", dir_okay=False, help="A document that `canon verify` wrote.")
]
Architecture = Annotated[
    str | None,
    typer.Option(
        "--arch",
        "-a",
        metavar="NAME",
        autocompletion=completion.architectures,
        help="What a file of weights belongs to: a torchvision or timm name, or package.module:factory. "
        "A factory is imported and called, so it runs that code; it is taken from here alone, never from a file.",
    ),
]
Size = Annotated[
    str | None,
    typer.Option("--size", help="Shape of one input, as 224 or 3x224x224; default: what the model is fed."),
]
TrustPickle = Annotated[
    bool,
    typer.Option(
        "--trust-pickle",
        help="Unpickle files that hold more than tensors. This runs any code in them with your rights: "
        "only for files that you made yourself.",
    ),
]
LimitChanges = Annotated[
    list[str] | None,
    typer.Option("--limit", metavar="NAME=NUMBER", help="Let files ask for more, as tensor_bytes=8000000000."),
]
