"""Models that a user names on the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from canon._files import check_outputs
from canon.cli import completion
from canon.cli.console import Talker, to_jsonable
from canon.cli.inputs import ExampleFile, load_example
from canon.cli.options import Architecture, LimitChanges, Size, TrustPickle, parse_limits, parse_size

if TYPE_CHECKING:
    from torch import nn

    from canon.io import LoadedModel

_WHAT: Final = (
    "A file (.safetensors, .index.json, .pt, .pth, .pt2, .onnx), a folder of transformers or diffusers "
    "(config.json and safetensors files), or the name of an architecture."
)
Model = Annotated[str, typer.Argument(metavar="MODEL", autocompletion=completion.models, help=_WHAT)]
Suspect = Annotated[str, typer.Argument(metavar="SUSPECT", autocompletion=completion.models, help=_WHAT)]
ModelOut = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        help="The file to write: weights (.safetensors, .pt) or weights and forward pass (.pt2, .onnx); without an "
        "ending, a new folder like the one that MODEL is.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How files of models are read."""

    arch: Architecture = None
    size: Size = None
    example: ExampleFile = None
    trust_pickle: TrustPickle = False
    limit: LimitChanges = None


def load_model(
    talker: Talker, source: str, reading: ReadOptions, *, outputs: Sequence[Path | None] = (), force: bool = False
) -> LoadedModel:
    """Load what the user names, and say what is worth knowing about it.

    Outputs that will be written later are kept off every file that is read, before and after it is known which ones
    these are: parts and external data are known only when the model is loaded.
    """
    from canon.io import is_factory, read_model

    check_outputs(outputs, [source, reading.example], force=force)
    if is_factory(reading.arch or source):
        import_from_here()
    loaded = read_model(
        source,
        reading.arch,
        size=parse_size(reading.size),
        trust_pickle=reading.trust_pickle,
        limits=parse_limits(reading.limit),
        example=None if reading.example is None else load_example(reading.example),
    )
    for note in loaded.notes:
        talker.note(f"{source}: {note}")
    check_outputs(outputs, loaded.files, force=force)
    return loaded


def import_from_here() -> None:
    """Let modules in the present folder be imported: last, so that none takes another module's place."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def digested(given: Path | str | None) -> str | None:
    """What a file holds, as a digest; the text itself where it names no file."""
    from canon.verify.digest import file_digest

    if given is None or not Path(given).is_file():
        return None if given is None else str(given)
    return file_digest(given)


def save_model(
    talker: Talker, model: nn.Module, out: Path, made_from: LoadedModel, options: Mapping[str, object], *, force: bool
) -> None:
    """Write what a verb made of a model. A folder that was interrupted is gone on with by the same command.

    Args:
        talker: Hears how far it is.
        model: What was made.
        out: Where to.
        made_from: What it was made from.
        options: All else that decides what was made.
        force: Replace a file that exists.
    """
    import torch

    from canon.io import save
    from canon.io.saving import names_folder
    from canon.verify.digest import document_digest
    from canon.verify.evidence import environment

    if not names_folder(out):
        save(model, out, example=made_from.example, architecture=made_from.architecture, force=force)
        return
    document = {
        "inputs": made_from.origin,
        "options": to_jsonable(options),
        "environment": environment(),
        "threads": torch.get_num_threads(),
        "out": str(out.absolute()),
    }
    work = document_digest(document) if made_from.files else None
    with talker.progress(f"writing {out}") as advance:
        save(model, out, work=work, progress=advance)
