"""The options that many verbs share, so that they are spelled and explained alike everywhere.

>>> def verb(seed: Seed = 0, as_json: AsJson = False) -> None: ...
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch


def parse_device(name: str) -> torch.device:
    """Turn a device name into a device, refusing what this machine does not have."""
    import torch

    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise typer.BadParameter(f"the device '{name}' cannot be used here; try 'cpu'") from error
    return device


AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of everything random; the same seed, the same result.")]
Device = Annotated[str, typer.Option("--device", help="Where to compute: cpu, cuda, cuda:1, mps.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", dir_okay=False, help="The file to write.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace the output if it exists.")]
Report = Annotated[
    Path | None, typer.Option("--report", dir_okay=False, help="Where to write a page for people to read, as HTML.")
]
