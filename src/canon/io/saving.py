"""`save`: a model to a file, in the format that the file's name asks for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from canon._files import OutputError, atomic_path
from canon.graph import Example, arguments
from canon.graph.tracer import check_module
from canon.io.formats import Writing, format_to_write, writable
from canon.rewrite import fold_norms as fold


def save(
    model: nn.Module,
    path: str | Path,
    *,
    example: Example | None = None,
    architecture: str | None = None,
    fold_norms: bool = False,
    force: bool = False,
    work: str | None = None,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Write a model, whole or not at all.

    Args:
        model: The model, in evaluation mode.
        path: Where to. The ending chooses the format: weights alone (.safetensors, .pt, .pth), or weights with the
            forward pass (.pt2, .onnx). A name without an ending is a folder, for models of transformers and diffusers;
            what begins with a digit is no ending, as in `llama-3.1-8b`.
        example: An input tensor or tuple of inputs; needed for formats that hold the forward pass, and to fold norms.
        architecture: Name of a public architecture, noted in a safetensors file so that `load` need not be told.
        fold_norms: Let layers take up the norms that follow them directly, as inference engines want it.
        force: Replace a file that exists.
        work: For folders: a digest of all that the model was made from. What was interrupted then leaves the files that
            were finished, and the next call with the same digest goes on behind them.
        progress: For folders: told which part is done, from 0 to 1.

    Raises:
        OutputError: The file cannot be written there, or not in that format.
    """
    check_module(model)
    target = Path(path)
    check_format(target)
    if names_folder(target):
        from canon.io.folder import save_folder

        save_folder(model, target, work=work, progress=progress)
        return
    given = None if example is None else arguments(model, example)
    inputs = () if given is None else given if isinstance(given, tuple) else (given,)
    if not inputs and (fold_norms or format_to_write(target).holds_graph):
        what = "folding norms" if fold_norms else "this format"
        raise OutputError(f"{what} needs an example input", where=str(target), hint="Give example=...")
    if fold_norms:
        model = fold(model, inputs).model
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    with atomic_path(target, force=force, size=size) as place:
        format_to_write(target).write(model, place, Writing(inputs, architecture))


def names_folder(target: Path) -> bool:
    """Whether a name is that of a folder: it has no ending. What begins with a digit is none, as in `llama-3.1-8b`."""
    return not target.suffix[1:2].isalpha()


def check_format(target: Path) -> None:
    """Raise `OutputError` unless a file of this name can be written; call it before the long work."""
    if not names_folder(target) and target.suffix.lower() not in writable():
        raise OutputError(
            f"'{target.suffix}' is no format that Canon writes",
            where=str(target),
            hint=f"Let the name end in {', '.join(writable())}",
        )
