"""`canon register`: make the layout key of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from canon.cli.console import Talker
from canon.cli.groups import verb
from canon.cli.inputs import moved
from canon.cli.models import Model, ReadOptions, load_model
from canon.cli.options import AsJson, Device, Force, parse_device

KeyOut = Annotated[Path, typer.Option("--out", "-o", dir_okay=False, help="The key file to write.")]
Numbers = Annotated[
    int | None, typer.Option("--numbers", min=1, max=1024, help="Exact numbers per channel; default: what fits.")
]
Robust = Annotated[
    bool,
    typer.Option(
        "--robust", help="Keep more numbers per row, up to a tenth of the model, for suspects that were changed."
    ),
]


@verb(
    "canon register owner.safetensors --arch resnet18 --out layout.key",
    "canon register owner.safetensors --numbers 8 --out small.key --json",
    "canon register owner.safetensors --robust --out robust.key",
)
def register(
    model: Model,
    out: KeyOut,
    reading: ReadOptions,
    numbers: Numbers = None,
    robust: Robust = False,
    device: Device = "cpu",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a layout key: a small file that restores MODEL's layout later, without the model."""
    from canon.verify import register as make_key

    talker = Talker(as_json)
    place = parse_device(device)
    loaded = load_model(talker, model, reading, outputs=[out], force=force)
    with talker.status(f"registering {loaded.name}"):
        inputs = moved(loaded.example, place)
        key = make_key(loaded.model.to(place), inputs, numbers=numbers, robust=robust)
    key.save(out, force=force)
    total = sum(t.numel() * t.element_size() for t in loaded.model.state_dict().values())
    written = out.stat().st_size
    spaces = len({step.space for step in key.layout.steps})
    document = {
        "key": out,
        "bytes": written,
        "share_of_model": written / total,
        "numbers_per_channel": key.layout.numbers,
        "numbers_per_row": None if key.portrait is None else key.portrait.numbers,
        "tolerated_noise": key.noise,
        "spaces": spaces,
        "model": key.model,
    }
    text = f"{out}: {written:,} bytes, {written / total:.2%} of the model; {spaces} channel spaces"
    if key.noise is not None:
        text += f"; channels of the widest layer are known again under noise of up to {key.noise:.0%} of every weight"
    talker.result(document, Text(text))
