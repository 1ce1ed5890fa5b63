"""`canon register`: make the layout key of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from canon._files import check_output
from canon.cli.console import Talker
from canon.cli.models import Architecture, load_model
from canon.cli.options import AsJson, Force

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A safetensors file (with --arch), or a model name.")]
KeyOut = Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="The key file to write.")]
Numbers = Annotated[
    int | None, typer.Option("--numbers", min=1, max=1024, help="Numbers per channel; default: what fits 2.5%.")
]


def register(
    model: Model,
    out: KeyOut,
    arch: Architecture = None,
    numbers: Numbers = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a layout key: a small file that restores this model's layout later, without the model."""
    from canon import zoo
    from canon.verify import register as make_key

    check_output(out, force=force)
    named = load_model(model, arch)
    key = make_key(named.model, zoo.example_input(named.architecture), numbers=numbers)
    key.save(out, force=force)
    size = sum(t.numel() * t.element_size() for t in named.model.state_dict().values())
    written = out.stat().st_size
    spaces = len({step.space for step in key.layout.steps})
    document = {
        "key": out,
        "bytes": written,
        "share_of_model": written / size,
        "numbers_per_channel": key.layout.numbers,
        "spaces": spaces,
        "model": key.model,
    }
    text = f"{out}: {written:,} bytes, {written / size:.2%} of the model; {spaces} channel spaces"
    Talker(as_json).result(document, Text(text))
