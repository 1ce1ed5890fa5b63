"""`canon locate`: find the owner's network inside a suspect, and write it as it stands there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from canon.cli.console import Talker, table
from canon.cli.exhibits import Owned, load_exhibits
from canon.cli.exit_codes import ExitCode
from canon.cli.groups import verb
from canon.cli.models import ReadOptions, Suspect
from canon.cli.options import AsJson, Device, Force

if TYPE_CHECKING:
    from canon.containment import Location

ExtractedOut = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Where to write the extracted model: the owner's layout."),
]

SHOWN = 12
"""Layers in the table."""


@verb(
    "canon locate suspect.safetensors --arch resnet18 --reference owner.safetensors",
    "canon locate suspect.safetensors --layout-key layout.key --out extracted.safetensors --json",
)
def locate(
    suspect: Suspect,
    owned: Owned,
    reading: ReadOptions,
    out: ExtractedOut = None,
    device: Device = "cpu",
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Find the owner's network inside SUSPECT, whatever was built around it. Exit status 0: contained or derived."""
    import canon
    from canon.io import check_format, save

    talker = Talker(as_json)
    if out is not None:
        check_format(out)
    exhibits = load_exhibits(talker, suspect, owned, reading, device, outputs=[out], force=force)
    given = exhibits.arguments(device)
    owner = given["layout_key"] if given["reference"] is None else given["reference"]
    with talker.status(f"looking for the owner's network in {exhibits.suspect.name}"):
        found = canon.locate(given["suspect"], owner, given["example"], ancestors=given["ancestors"])
    written = None
    if out is not None and found.model is not None:
        save(found.model.cpu(), out, example=exhibits.suspect.example, architecture=_name(exhibits), force=force)
        written = out
    document: dict[str, Any] = {"suspect": suspect, "weights": written, "inputs": exhibits.inputs, **found.to_dict()}
    talker.result(document, _describe(found, written))
    if found.answer not in ("contained", "derived"):
        raise typer.Exit(ExitCode.INCONCLUSIVE)


def _name(exhibits: Any) -> str | None:
    """The extracted model is built like the owner's."""
    loaded = exhibits.suspect if exhibits.owner is None else exhibits.owner
    name: str | None = loaded.architecture
    return name


def _describe(found: Location, written: Path | None) -> Group:
    lines: list[Any] = [Text(f"{found.answer}: {found.reason}")]
    if found.layers:
        lines.append(_table(found))
    if found.agreement is not None:
        lines.append(Text(f"extracted model and suspect differ by {found.agreement.difference:.1e} of their outputs"))
    if found.refitted:
        lines.append(Text(f"columns refitted on the suspect's activations: {', '.join(found.refitted)}"))
    lines += [Text(note) for note in found.notes]
    if written is not None:
        lines.append(Text(f"{written}: the extracted model"))
    return Group(*lines)


def _table(found: Location) -> Table:
    """The layers in which least was found."""
    layers = table("layer", "channels", "found", "distinct", "residual")
    worst = sorted(found.layers, key=lambda layer: layer.distinct / max(1, layer.channels))[:SHOWN]
    for layer in worst:
        numbers = (f"{layer.channels:,}", f"{layer.found:,}", f"{layer.distinct:,}", f"{layer.worst:.1e}")
        layers.add_row(escape(layer.name), *numbers)
    if len(found.layers) > SHOWN:
        layers.caption = f"of {len(found.layers)} layers those in which least was found"
    return layers
