"""`save`: a model to a file, in the format that the file's name asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from canon._files import OutputError, atomic_path
from canon._safetensors import write_safetensors
from canon._version import __version__
from canon.graph import Example, arguments
from canon.graph.tracer import check_module
from canon.io.architecture import is_factory
from canon.io.formats import METADATA
from canon.io.program import save_program
from canon.rewrite import fold_norms as fold

WRITABLE: Final = (".safetensors", ".pt", ".pth", ".pt2", ".onnx")
"""Endings of the files that can be written."""

_NEEDS_EXAMPLE: Final = (".pt2", ".onnx")


def save(
    model: nn.Module,
    path: str | Path,
    *,
    example: Example | None = None,
    architecture: str | None = None,
    fold_norms: bool = False,
    force: bool = False,
) -> None:
    """Write a model, whole or not at all.

    Args:
        model: The model, in evaluation mode.
        path: Where to. The ending chooses the format: weights alone (.safetensors, .pt, .pth), or weights with the
            forward pass (.pt2, .onnx). A name without an ending is a folder, for models of transformers and diffusers.
        example: An input tensor or tuple of inputs; needed for formats that hold the forward pass, and to fold norms.
        architecture: Name of a public architecture, noted in a safetensors file so that `load` need not be told.
        fold_norms: Let layers take up the norms that follow them directly, as inference engines want it.
        force: Replace a file that exists.

    Raises:
        OutputError: The file cannot be written there, or not in that format.
    """
    check_module(model)
    target = Path(path)
    check_format(target)
    if not target.suffix:
        from canon.io.folder import save_folder

        save_folder(model, target)
        return
    given = None if example is None else arguments(model, example)
    inputs = () if given is None else given if isinstance(given, tuple) else (given,)
    if not inputs and (fold_norms or target.suffix in _NEEDS_EXAMPLE):
        what = "folding norms" if fold_norms else "this format"
        raise OutputError(f"{what} needs an example input", where=str(target), hint="Give example=...")
    if fold_norms:
        model = fold(model, inputs).model
    with atomic_path(target, force=force) as place:
        if target.suffix == ".safetensors":
            write_safetensors(place, model.state_dict(), _metadata(architecture))
        elif target.suffix in (".pt", ".pth"):
            torch.save({name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}, place)
        elif target.suffix == ".pt2":
            save_program(model, inputs, place)
        else:
            from canon.io.onnx import save_onnx

            save_onnx(model, inputs, place)


def check_format(target: Path) -> None:
    """Raise `OutputError` unless a file of this name can be written; call it before the long work."""
    if target.suffix and target.suffix not in WRITABLE:
        raise OutputError(
            f"'{target.suffix}' is no format that Canon writes",
            where=str(target),
            hint=f"Let the name end in {', '.join(WRITABLE)}",
        )


def _metadata(architecture: str | None) -> dict[str, str]:
    """What a file says about itself. A factory is the user's own business and is not written down."""
    note: dict[str, Any] = {"format": "canon-model", "version": 1, "canon": __version__}
    if architecture is not None and not is_factory(architecture):
        note["architecture"] = architecture
    return {METADATA: json.dumps(note), "format": "pt"}
