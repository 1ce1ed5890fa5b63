"""What a verification is given: suspect, reference or layout key, watermark key, ancestors, probes. None is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from canon._files import check_outputs
from canon.cli import completion
from canon.cli.console import Talker
from canon.cli.inputs import moved as on_device
from canon.cli.models import load_model
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
class Named:
    """What the user named."""

    suspect: str
    reference: str | None
    layout_key: Path | None
    watermark_key: Path | None
    ancestors: Sequence[str] = ()
    probes: Path | None = None
    arch: str | None = None
    size: str | None = None
    example: Path | None = None
    trust_pickle: bool = False
    limit: list[str] | None = None
    device: str = "cpu"
    outputs: Sequence[Path | None] = ()
    """What will be written."""

    also_read: Sequence[Path] = ()
    force: bool = False

    @property
    def inputs(self) -> list[object]:
        """Everything that is read."""
        named = (self.suspect, self.reference, self.layout_key, self.watermark_key, self.probes)
        return [*named, *self.ancestors, *self.also_read]


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


def load_exhibits(talker: Talker, named: Named) -> Exhibits:
    """Load what the user named, after all outputs were found to be possible and to be none of it."""
    from canon.io.origin import read_with_origin
    from canon.verify import LayoutKey
    from canon.watermarks import load_key

    if (named.reference is None) == (named.layout_key is None):
        raise typer.BadParameter("give either --reference or --layout-key")
    if named.probes is not None and named.layout_key is not None:
        raise typer.BadParameter("--probes need the owner's model: a layout key knows outputs on its own probes only")
    parse_device(named.device)
    check_outputs(named.outputs, named.inputs, force=named.force)

    def model(source: str, arch: str | None) -> LoadedModel:
        return load_model(
            talker,
            source,
            arch,
            named.size,
            named.trust_pickle,
            named.limit,
            named.example,
            outputs=named.outputs,
            force=named.force,
        )

    suspect = model(named.suspect, named.arch)
    inputs = {"suspect": {**suspect.origin, **_signed(named.suspect)}}
    arch = named.arch or suspect.architecture
    owner = None if named.reference is None else model(named.reference, arch)
    if owner is not None:
        inputs["reference"] = {**owner.origin, **_signed(str(named.reference))}
    ancestors = tuple(model(source, arch) for source in named.ancestors)
    inputs |= {f"ancestor_{index}": one.origin for index, one in enumerate(ancestors, 1)}
    layout, mark = None, None
    if named.layout_key is not None:
        layout, inputs["layout_key"] = read_with_origin(named.layout_key, LayoutKey.load)
    if named.watermark_key is not None:
        mark, inputs["watermark_key"] = read_with_origin(named.watermark_key, load_key)
    probes = None if named.probes is None else load_probes(named.probes, suspect.model, suspect.example)
    if probes is not None:
        inputs["probes"] = probes.origin
    return Exhibits(suspect, owner, layout, mark, ancestors, probes, inputs)


def _signed(source: str) -> dict[str, str]:
    """What an OpenSSF signature beside a model file says of it; nobody has checked it."""
    from canon.claims.signed_models import provenance_of
    from canon.errors import CanonError

    try:
        found = provenance_of(source) if Path(source).exists() else None
    except CanonError as error:
        return {"signature": f"there is a signature that cannot be read: {error.message}"}
    return {} if found is None else {f"signature_{name}": str(value) for name, value in found.items()}
