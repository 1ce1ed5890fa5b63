"""What a verification is given: suspect, reference or layout key, watermark key, ancestors, probes. None is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from canon._files import check_outputs
from canon.cli import completion
from canon.cli.console import Talker
from canon.cli.inputs import moved as on_device
from canon.cli.models import ReadOptions, load_model
from canon.cli.options import parse_device
from canon.cli.probes import HELP, Probes, load_probes

if TYPE_CHECKING:
    from torch import Tensor

    from canon.io import LoadedModel
    from canon.verify import LayoutKey
    from canon.watermarks import Key

Reference = Annotated[
    str | None,
    typer.Option(
        "--reference",
        "-r",
        metavar="MODEL",
        autocompletion=completion.models,
        help="The owner's model: a file of any format.",
    ),
]
LayoutFile = Annotated[Path | None, typer.Option("--layout-key", "-l", dir_okay=False, help="Its layout key instead.")]
MarkFile = Annotated[
    Path | None, typer.Option("--watermark-key", "-w", dir_okay=False, help="The owner's watermark key.")
]
Ancestors = Annotated[
    list[str] | None,
    typer.Option(
        "--ancestor",
        metavar="MODEL",
        help="A public model that the owner's was trained from: only what the owner added then counts; repeatable.",
    ),
]
ProbesPath = Annotated[Path | None, typer.Option("--probes", metavar="PATH", help=HELP)]


@dataclass(frozen=True, kw_only=True)
class Owned:
    """What the owner brings."""

    reference: Reference = None
    layout_key: LayoutFile = None
    ancestor: Ancestors = None


@dataclass(frozen=True, kw_only=True)
class Marked(Owned):
    """The same with a watermark key, and probes."""

    watermark_key: MarkFile = None
    probes: ProbesPath = None


@dataclass(frozen=True, eq=False)
class Exhibits:
    """All of it, loaded."""

    suspect: LoadedModel
    owner: LoadedModel | None
    layout_key: LayoutKey | None
    watermark_key: Key | None
    ancestors: tuple[LoadedModel, ...]
    probes: Probes | None
    inputs: dict[str, dict[str, str]] = field(default_factory=dict)
    """Names and digests, by role."""

    def arguments(self, device: str) -> dict[str, Any]:
        """What `canon.judge` takes, on a device."""
        place = parse_device(device)

        def moved(loaded: LoadedModel) -> Any:
            return loaded.model.to(place)

        return {
            "suspect": moved(self.suspect),
            "example": on_device(self.suspect.example, place),
            "reference": None if self.owner is None else moved(self.owner),
            "layout_key": self.layout_key,
            "watermark_key": self.watermark_key,
            "ancestors": tuple(moved(one) for one in self.ancestors),
            "probes": None if self.probes is None else {self.probes.name: self._probes(place)},
            "inputs": self.inputs,
        }

    def _probes(self, place: Any) -> list[Tensor]:
        assert self.probes is not None, "callers check it"
        return [array.to(place) for array in self.probes.arrays]


def load_exhibits(
    talker: Talker,
    suspect_file: str,
    owned: Owned,
    reading: ReadOptions,
    device: str,
    *,
    outputs: Sequence[Path | None],
    also_read: Sequence[Path] = (),
    force: bool,
) -> Exhibits:
    """Load what the user named, after all outputs were found to be possible and to be none of it."""
    from canon.io.origin import read_with_origin
    from canon.verify import LayoutKey
    from canon.watermarks import load_key

    brought = owned if isinstance(owned, Marked) else Marked(**vars(owned))
    if (brought.reference is None) == (brought.layout_key is None):
        raise typer.BadParameter("give either --reference or --layout-key")
    if brought.probes is not None and brought.layout_key is not None:
        raise typer.BadParameter("--probes need the owner's model: a layout key knows outputs on its own probes only")
    parse_device(device)
    ancestors = brought.ancestor or ()
    named = (brought.reference, brought.layout_key, brought.watermark_key, brought.probes, *ancestors)
    check_outputs(outputs, [suspect_file, *named, *also_read], force=force)

    suspect = load_model(talker, suspect_file, reading, outputs=outputs, force=force)
    alike = replace(reading, arch=reading.arch or suspect.architecture)

    def model(source: str) -> LoadedModel:
        return load_model(talker, source, alike, outputs=outputs, force=force)

    inputs = {"suspect": {**suspect.origin, **_signed(suspect_file)}}
    owner = None if brought.reference is None else model(brought.reference)
    if owner is not None:
        inputs["reference"] = {**owner.origin, **_signed(str(brought.reference))}
    public = tuple(map(model, ancestors))
    inputs |= {f"ancestor_{index}": one.origin for index, one in enumerate(public, 1)}
    layout, mark = None, None
    if brought.layout_key is not None:
        layout, inputs["layout_key"] = read_with_origin(brought.layout_key, LayoutKey.load)
    if brought.watermark_key is not None:
        mark, inputs["watermark_key"] = read_with_origin(brought.watermark_key, load_key)
    probes = None if brought.probes is None else load_probes(brought.probes, suspect.model, suspect.example)
    if probes is not None:
        inputs["probes"] = probes.origin
    return Exhibits(suspect, owner, layout, mark, public, probes, inputs)


def _signed(source: str) -> dict[str, str]:
    """What an OpenSSF signature beside a model file says of it; nobody has checked it."""
    from canon.claims.signed_models import provenance_of
    from canon.errors import CanonError

    try:
        found = provenance_of(source) if Path(source).exists() else None
    except CanonError as error:
        return {"signature": f"there is a signature that cannot be read: {error.message}"}
    return {} if found is None else {f"signature_{name}": str(value) for name, value in found.items()}
