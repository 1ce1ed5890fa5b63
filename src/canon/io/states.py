"""State dicts as `torch.save` writes them (.pt, .pth, .bin): the tensors, without unpickling.

Both forms are read: the archive that torch writes today, and the row of pickles that it wrote before 1.6.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, Final

import torch
from torch import Tensor

from canon._safetensors import damaged, read_numbers
from canon.errors import FileFormatError
from canon.io.archive import Archive
from canon.io.limits import Limits
from canon.io.pickles import Name, Note, Reference, follow
from canon.io.views import View, Views

LEGACY_MAGIC: Final = 0x1950A86A20F9469CFC6C
_STORAGES: Final[dict[str, torch.dtype]] = {
    "torch.DoubleStorage": torch.float64, "torch.FloatStorage": torch.float32, "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16, "torch.LongStorage": torch.int64, "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16, "torch.CharStorage": torch.int8, "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool, "torch.storage.UntypedStorage": torch.uint8,
}  # fmt: skip
_DTYPES: Final = {f"torch.{name}": getattr(torch, name) for name in "uint16 float8_e4m3fn float8_e5m2".split()}
_WRAPPERS: Final = ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state")
_NESTED: Final = ("state_dict", "model_state_dict", "model", "net", "weights", "params")
_MODULE_HINT: Final = (
    "Save the weights alone: torch.save(model.state_dict(), path), or as safetensors. "
    "With --trust-pickle it is unpickled, which runs whatever code the file holds, with your rights"
)


@dataclass(frozen=True)
class _Storage:
    """Numbers that tensors are views of."""

    stored: torch.dtype
    """Type that they are counted in."""

    count: int


def read_state(file: BufferedReader, where: str, limits: Limits) -> dict[str, Tensor]:
    """The tensors of an archive written by `torch.save`, by name."""
    archive = Archive(file, where, limits)
    if "data.pkl" not in archive.records or any(name.startswith("code/") for name in archive.records):
        script = "constants.pkl" in archive.records
        raise FileFormatError(
            "the file is a TorchScript program" if script else "the archive holds no state dict",
            where=where,
            hint="Export the original model with torch.export or save its state dict" if script else None,
        )
    if "byteorder" in archive.records and archive.read("byteorder") != b"little":
        raise FileFormatError("the file was written on a big-endian machine", where=where)
    root, _ = follow(archive.read("data.pkl"), where)
    views, storages = _places(root, where)

    def numbers(view: View) -> Tensor:
        storage = storages[view.storage]
        flat = archive.numbers(f"data/{view.storage}", storage.stored)
        if flat.numel() != storage.count:
            raise damaged(f"the storage '{view.storage:.40}' has another size than the file says", where)
        return flat.view(view.dtype)

    return _tensors(views, numbers, file, where, limits)


def read_legacy_state(file: BufferedReader, where: str, limits: Limits) -> dict[str, Tensor]:
    """The tensors of a file that torch wrote before 1.6."""
    total = file.seek(0, os.SEEK_END)
    limits.check_file(total, where)
    position = 0
    parts = []
    for _ in range(5):
        file.seek(position)
        part, size = follow(file.read(limits.header_bytes), where)
        parts.append(part)
        position += size
        if parts[0] != LEGACY_MAGIC:
            raise FileFormatError(
                f"the file is a pickle of {_what(parts[0])}, not a state dict", where=where, hint=_MODULE_HINT
            )
    _, _, system, root, keys = parts
    if not isinstance(system, dict) or not system.get("little_endian", True) or not _texts(keys):
        raise damaged("the list of storages is missing, or numbers are big-endian", where)
    views, storages = _places(root, where)
    starts: dict[str, int] = {}
    for key in keys:
        file.seek(position)
        count = int.from_bytes(file.read(8), "little")
        if key not in storages or key in starts or count != storages[key].count:
            raise damaged(f"the storage '{key:.40}' is unknown, doubled or of another size", where)
        starts[key] = position + 8
        position += 8 + count * storages[key].stored.itemsize
        if position > total:
            raise damaged(f"the storage '{key:.40}' is cut off", where)

    def numbers(view: View) -> Tensor:
        if view.storage not in starts:
            raise damaged(f"the storage '{view.storage:.40}' is missing", where)
        storage = storages[view.storage]
        size = storage.count * storage.stored.itemsize
        return read_numbers(file, starts[view.storage], size, storage.stored, where).view(view.dtype)

    return _tensors(views, numbers, file, where, limits)


def plain_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names without the `module.` that DataParallel puts before all of them."""
    if state and all(name.startswith("module.") for name in state):
        return {name.removeprefix("module."): tensor for name, tensor in state.items()}
    return dict(state)


def _tensors(
    views: dict[str, View], numbers: Callable[[View], Tensor], file: BufferedReader, where: str, limits: Limits
) -> dict[str, Tensor]:
    limits.check_count(len(views), where)
    made = Views(numbers, file.seek(0, os.SEEK_END), where, limits)
    return {name: made.tensor(view, name) for name, view in views.items()}


def _places(root: Any, where: str) -> tuple[dict[str, View], dict[str, _Storage]]:
    """Where the tensors of a state dict lie, and in what. A checkpoint may hold one among other things."""
    state = root
    if isinstance(root, dict):
        state = next((root[key] for key in _NESTED if _holds_tensors(root.get(key))), root)
    if not _holds_tensors(state):
        raise FileFormatError(
            f"the file is a pickle of {_what(root)}, not a state dict", where=where, hint=_MODULE_HINT
        )
    views: dict[str, View] = {}
    storages: dict[str, _Storage] = {}
    try:
        for name, value in state.items():
            if _is_tensor(value):
                view, storage = _placed(_bare(value))
                if storages.setdefault(view.storage, storage) != storage:
                    raise ValueError("a storage has two types or sizes")
                views[str(name)] = view
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise damaged(f"a tensor is not understood: {error}", where) from error
    return views, storages


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, dict) and any(_is_tensor(item) for item in value.values())


def _is_tensor(value: Any) -> bool:
    return isinstance(_bare(value), Note) and _bare(value).called.startswith("torch._utils._rebuild_tensor")


def _bare(value: Any) -> Any:
    """A parameter is a wrapped tensor."""
    if isinstance(value, Note) and value.called in _WRAPPERS and isinstance(value.arguments, tuple):
        return value.arguments[0] if value.arguments else None
    return value


def _placed(note: Note) -> tuple[View, _Storage]:
    storage, offset, shape, strides = note.arguments[:4]
    if not isinstance(storage, Reference):
        raise TypeError("a tensor without a storage")
    kind, stored, key, _, count = storage.identity[:5]
    if kind != "storage" or not isinstance(stored, Name) or not isinstance(key, str):
        raise TypeError("a storage without a type or a name")
    kept = _STORAGES[str(stored)]
    dtype = kept
    if note.called.endswith("_v3"):
        named = note.arguments[6]
        dtype = _DTYPES[str(named) if isinstance(named, Name) else ""]
    offset, count = _naturals((offset, count))
    return View(key, dtype, _naturals(shape), _naturals(strides), offset), _Storage(kept, count)


def _naturals(values: Any) -> tuple[int, ...]:
    if isinstance(values, Note):  # torch.Size
        (values,) = values.arguments
    if not isinstance(values, tuple | list) or len(values) > 64:
        raise TypeError("expected sizes")
    if not all(type(value) is int and 0 <= value < 1 << 62 for value in values):
        raise ValueError("a size is negative, too large or no number")
    return tuple(values)


def _what(value: Any) -> str:
    if isinstance(value, Note):
        return f"a '{value.called:.120}'" if value.called else "an object"
    if isinstance(value, dict):
        return "a dict without tensors"
    return f"a {type(value).__name__}"


def _texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
