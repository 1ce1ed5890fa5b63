"""Inputs that a user gives to compare outputs on: arrays in a .npz file, or a folder of images."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from canon.cli.inputs import load_arrays
from canon.errors import DataError, import_extra

if TYPE_CHECKING:
    from torch import Tensor, nn

SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff")
"""Endings of the images in a folder; everything else in it is left alone."""

MEAN: Final = {3: (0.485, 0.456, 0.406), 1: (0.5,)}
DEVIATION: Final = {3: (0.229, 0.224, 0.225), 1: (0.5,)}
"""What images are normalised with, by number of colours: those of ImageNet, as most public models want them."""

MOST_IMAGES: Final = 4096
MOST_PIXELS: Final = 1 << 26

HELP: Final = (
    "Inputs to compare outputs on as well: a .npz file with one array for each input, named as the input or arr_0, "
    "arr_1, ..., taken as they are; or a folder of images, each resized to the model's input (bilinear), scaled to "
    "0...1 and normalised with ImageNet's mean and deviation (grey: 0.5 and 0.5)."
)


@dataclass(frozen=True, eq=False)
class Probes:
    """Inputs of one source."""

    name: str
    arrays: list[Tensor]
    """One for each input of the model; the first axis counts the probes."""

    origin: dict[str, str]
    """Name, digest and preparation, for evidence."""


def load_probes(path: Path, model: nn.Module, example: Sequence[Any]) -> Probes:
    """Probes from a file or folder.

    Raises:
        DataError: There are none that this model takes.
        MissingExtraError: Images are given, and pillow is not installed.
    """
    name = path.resolve().name
    name = f"file {name}" if name == "random" else name
    if path.is_dir():
        arrays, sha256, preparation = _images(path, example)
    elif path.is_file():
        arrays, sha256, preparation = _arrays(path, model, len(example))
    else:
        raise DataError("there are no such probes", where=str(path), hint="Give a .npz file or a folder of images")
    count = f"{len(arrays[0])} probes"
    return Probes(name, arrays, {"file": name, "sha256": sha256, "preparation": f"{count}, {preparation}"})


def _arrays(path: Path, model: nn.Module, inputs: int) -> tuple[list[Tensor], str, str]:
    import torch

    from canon.io.origin import file_state, unchanged_digest

    state = file_state(path)
    held = load_arrays(path, "file of probes")
    names = _chosen([*held], model, inputs, str(path))
    arrays = [held[name] for name in names]
    for name, array in zip(names, arrays, strict=True):
        if not array.ndim or not len(array):
            raise DataError(f"the array '{name:.80}' holds no probes", where=str(path))
        if array.is_floating_point() and not bool(torch.isfinite(array).all()):
            raise DataError(f"the array '{name:.80}' holds numbers that are not finite", where=str(path))
    return arrays, unchanged_digest(path, state), f"the arrays {', '.join(names):.200} as they are"


def _chosen(held: Sequence[str], model: nn.Module, inputs: int, where: str) -> list[str]:
    """The arrays in the order of the model's inputs."""
    try:
        named = [*inspect.signature(model.forward).parameters][:inputs]
    except (TypeError, ValueError):
        named = []
    if len(named) == inputs and set(named) <= set(held):
        return named
    numbered = [f"arr_{index}" for index in range(inputs)]
    if set(numbered) == set(held):
        return numbered
    if inputs == 1 and len(held) == 1:
        return [*held]
    raise DataError(
        f"the model takes {inputs} inputs, and the file holds {len(held)} arrays with other names",
        where=where,
        hint=f"Name them {', '.join(named or numbered)}",
    )


def _images(folder: Path, example: Sequence[Any]) -> tuple[list[Tensor], str, str]:
    import numpy
    import torch

    Image = import_extra("PIL.Image", "zoo", "pillow")
    shape = tuple(getattr(example[0], "shape", ()))
    if len(example) != 1 or len(shape) != 4 or shape[1] not in MEAN:
        raise DataError("images fit only models of one input with 1 or 3 colours", hint="Give a .npz file instead")
    colours, height, width = shape[1:]
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file())
    if not 0 < len(files) <= MOST_IMAGES:
        raise DataError(f"the folder holds {len(files)} images, not 1 to {MOST_IMAGES}", where=str(folder))
    listing, rows = hashlib.sha256(), []
    for path in files:
        content = path.read_bytes()
        listing.update(f"{hashlib.sha256(content).hexdigest()}  {path.name}\n".encode("utf-8", "surrogateescape"))
        try:
            with Image.open(path) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise ValueError(f"it has more than {MOST_PIXELS:,} pixels")
                small = image.convert("RGB" if colours == 3 else "L").resize((width, height), Image.Resampling.BILINEAR)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"an image cannot be read: {error!s:.160}", where=str(path)) from error
        rows.append(torch.from_numpy(numpy.asarray(small, dtype=numpy.float32).reshape(height, width, colours) / 255))
    pixels = torch.stack(rows).permute(0, 3, 1, 2)
    mean, deviation = (torch.tensor(values[colours]).view(1, -1, 1, 1) for values in (MEAN, DEVIATION))
    numbers = [", ".join(f"{value:g}" for value in values[colours]) for values in (MEAN, DEVIATION)]
    preparation = (
        f"images resized to {height}x{width} (bilinear), scaled to 0...1, normalised with mean {numbers[0]} and "
        f"deviation {numbers[1]}; the digest is that of what sha256sum prints for them in the order of their names"
    )
    return [(pixels - mean) / deviation], listing.hexdigest(), re.sub(r"\s+", " ", preparation)
