"""Models that a user names: an architecture of the zoo, or a safetensors file of weights for one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from canon.errors import FileFormatError, MissingExtraError

if TYPE_CHECKING:
    from torch import Tensor, nn

Architecture = Annotated[
    str | None, typer.Option("--arch", "-a", help="A torchvision or timm model name, for weights from a file.")
]


@dataclass(frozen=True, eq=False)
class NamedModel:
    """A model and where it came from."""

    model: nn.Module
    architecture: str
    """Its name in the zoo."""

    origin: dict[str, str]
    """What evidence says about its origin: name and SHA-256 of the file."""


def load_model(source: str, architecture: str | None) -> NamedModel:
    """Load a model by file or name. Obfuscated files have other widths: these come from the file.

    Args:
        source: A safetensors file, or the name of an architecture.
        architecture: What the file's tensors belong to; not needed for a name.
    """
    from canon import zoo
    from canon.verify.digest import file_digest

    path = Path(source)
    if not path.suffix and not path.exists():
        return NamedModel(zoo.model(source), source, {"name": source})
    if not path.is_file():
        raise FileFormatError("no such file", where=source)
    if architecture is None:
        raise FileFormatError("a file of weights says nothing about its architecture", where=source, hint="Use --arch")
    model = with_tensors(zoo.model(architecture), read_tensors(path), source)
    return NamedModel(model, architecture, {"file": path.name, "sha256": file_digest(path)})


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        import safetensors
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        raise MissingExtraError("safetensors", "io") from error
    try:
        return load_file(str(path))
    except (safetensors.SafetensorError, OSError) as error:
        raise FileFormatError(
            f"the file is damaged or is no safetensors file: {error}",
            where=str(path),
            hint="Pickled checkpoints are refused: they can run code. Save the weights as safetensors",
        ) from error


def with_tensors(model: nn.Module, state: dict[str, Tensor], where: str) -> nn.Module:
    """A copy of a model with these weights, as wide as they are."""
    from canon.graph.tensors import tensor_names
    from canon.rewrite import replace_tensors, resize_kernels

    tensors, aliases = tensor_names(model)
    unknown = [name for name in state if name not in aliases]
    missing = [name for name in tensors if not name.endswith("num_batches_tracked") and name not in state]
    if unknown or missing:
        what = f"lacks '{missing[0]}'" if missing else f"holds '{unknown[0]}', which the architecture does not have"
        raise FileFormatError(
            f"the weights belong to another architecture: the file {what}", where=where, hint="Check --arch"
        )
    changed, rings = {}, {}
    for name, value in state.items():
        if aliases[name] != name:
            continue
        old = tensors[name]
        if value.ndim != old.ndim or value.is_floating_point() != old.is_floating_point():
            raise FileFormatError(
                f"the tensor '{name}' does not fit the architecture", where=where, hint="Check --arch"
            )
        changed[name] = value
        if value.ndim > 2 and value.shape[2:] != old.shape[2:]:
            rings[name] = (value.shape[2] - old.shape[2]) // 2
    result = replace_tensors(model, changed)
    resize_kernels(result, rings)
    return result


def save_tensors(model: nn.Module, path: Path) -> None:
    """Write a model's weights as safetensors."""
    try:
        module: Any = __import__("safetensors.torch", fromlist=["save_file"])
    except ModuleNotFoundError as error:
        raise MissingExtraError("safetensors", "io") from error
    module.save_file({name: t.detach().cpu().contiguous().clone() for name, t in model.state_dict().items()}, str(path))
