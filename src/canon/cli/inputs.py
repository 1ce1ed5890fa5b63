"""Example inputs that a user gives: arrays in a .npz file, by the names of the model's inputs."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from canon.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from canon.graph import Example

MOST_BYTES: Final = 1 << 30
LONGEST_NAME: Final = 200

ExampleFile = Annotated[
    Path | None,
    typer.Option(
        "--example",
        dir_okay=False,
        help="An example input: a .npz file with one array for each input, by name or as arr_0, arr_1, ...; only "
        "shapes and types matter, and the range of ids. Default: made from the config, the file or the architecture.",
    ),
]


def load_example(path: Path) -> Example:
    """The inputs in a file: by name, or in order where they are numbered.

    Raises:
        DataError: The file cannot be read.
    """
    arrays = load_arrays(path, "example")
    if not arrays:
        raise DataError("the example holds no array", where=str(path))
    numbered = [f"arr_{index}" for index in range(len(arrays))]
    return tuple(arrays[name] for name in numbered) if set(numbered) == set(arrays) else arrays


def load_arrays(path: Path, what: str) -> dict[str, Tensor]:
    """The arrays of a .npz file that may come from anybody, by name.

    Raises:
        DataError: The file cannot be read, is too large, or its arrays have names too long to print.
    """
    import numpy
    import torch

    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MOST_BYTES:
            raise DataError(f"the {what} takes {size:,} bytes, and at most {MOST_BYTES:,} are allowed", where=str(path))
        with numpy.load(path, allow_pickle=False) as found:
            if any(len(name) > LONGEST_NAME for name in found.files):
                raise DataError("the arrays' names are too long", where=str(path))
            return {name: torch.from_numpy(numpy.ascontiguousarray(found[name])) for name in found.files}
    except DataError:
        raise
    except (MemoryError, Exception) as error:  # numpy and zipfile raise what their many parts raise
        raise DataError(f"the {what} cannot be read as .npz: {error!s:.160}", where=str(path)) from error


def moved(example: tuple[Any, ...], place: Any) -> tuple[Any, ...]:
    """Inputs on a device."""
    from canon.graph.inputs import map_tensors

    found: tuple[Any, ...] = map_tensors(lambda x: x.to(place), example)
    return found
