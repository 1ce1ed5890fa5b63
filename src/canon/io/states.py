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
from canon.errors import FileFormatError, LimitError
from canon.io.archive import Archive
from canon.io.limits import Limits
from canon.io.pickles import Name, Note, Reference, follow

LEGACY_MAGIC: Final = 0x1950A86A20F9469CFC6C
SLACK: Final = 256 << 20
"""Bytes that views of one storage may take beyond the size of the file."""

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
class _Placed:
    """Where a tensor's numbers lie."""

    key: str
    stored: torch.dtype
    """Type that the storage is counted in."""

    count: int
    """Numbers in the storage."""

    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


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
    return _tensors(root, lambda p: archive.numbers(f"data/{p.key}", p.stored), file, where, limits)


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
    starts: dict[str, int] = {}
    widths = {p.key: p.stored.itemsize for p in _places(root, where).values()}
    for key in keys:
        file.seek(position)
        count = int.from_bytes(file.read(8), "little")
        size = count * widths.get(key, 0)
        if key not in widths or key in starts or position + 8 + size > total:
            raise damaged("a storage is unknown, doubled or cut off", where)
        starts[key] = position + 8
        position += 8 + size

    def numbers(placed: _Placed) -> Tensor:
        size = placed.count * placed.stored.itemsize
        if placed.key not in starts or starts[placed.key] + size > total:
            raise damaged(f"the storage '{placed.key:.40}' is missing or cut off", where)
        return read_numbers(file, starts[placed.key], size, placed.stored, where)

    return _tensors(root, numbers, file, where, limits)


def plain_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names without the `module.` that DataParallel puts before all of them."""
    if state and all(name.startswith("module.") for name in state):
        return {name.removeprefix("module."): tensor for name, tensor in state.items()}
    return dict(state)


def _tensors(
    root: Any, numbers: Callable[[_Placed], Tensor], file: BufferedReader, where: str, limits: Limits
) -> dict[str, Tensor]:
    places = _places(root, where)
    limits.check_count(len(places), where)
    room = file.seek(0, os.SEEK_END) + SLACK
    storages: dict[str, Tensor] = {}
    views: dict[_Placed, Tensor] = {}
    for name, placed in places.items():
        if placed in views:
            continue
        count = limits.check_shape(placed.shape, placed.dtype.itemsize, f"{where}: {name}")
        room -= count * placed.dtype.itemsize
        if room < 0:
            raise LimitError("the tensors are views that together are larger than the file", where=where)
        if placed.key not in storages:
            storages[placed.key] = numbers(placed)
        flat = storages[placed.key]
        if flat.dtype != placed.stored or flat.numel() != placed.count:
            raise damaged(f"the storage of '{name:.120}' has another size than the file says", where)
        views[placed] = _view(flat.view(placed.dtype), placed, count, name, where)
    return {name: views[placed] for name, placed in places.items()}


def _view(flat: Tensor, placed: _Placed, count: int, name: str, where: str) -> Tensor:
    last = placed.offset + sum((n - 1) * s for n, s in zip(placed.shape, placed.stride, strict=True))
    if count and (last >= flat.numel() or count > flat.numel()):
        raise damaged(f"the tensor '{name:.120}' reaches beyond its storage", where)
    if not count:
        return torch.empty(placed.shape, dtype=placed.dtype)
    return flat.as_strided(placed.shape, placed.stride, placed.offset).contiguous()


def _places(root: Any, where: str) -> dict[str, _Placed]:
    """Where the tensors of a state dict lie. A checkpoint may hold one among other things."""
    state = root
    if isinstance(root, dict):
        state = next((root[key] for key in _NESTED if _holds_tensors(root.get(key))), root)
    if not _holds_tensors(state):
        raise FileFormatError(
            f"the file is a pickle of {_what(root)}, not a state dict", where=where, hint=_MODULE_HINT
        )
    try:
        return {str(name): _placed(_bare(value)) for name, value in state.items() if _is_tensor(value)}
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise damaged(f"a tensor is not understood: {error}", where) from error


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, dict) and any(_is_tensor(item) for item in value.values())


def _is_tensor(value: Any) -> bool:
    return isinstance(_bare(value), Note) and _bare(value).called.startswith("torch._utils._rebuild_tensor")


def _bare(value: Any) -> Any:
    """A parameter is a wrapped tensor."""
    if isinstance(value, Note) and value.called in _WRAPPERS and isinstance(value.arguments, tuple):
        return value.arguments[0] if value.arguments else None
    return value


def _placed(note: Note) -> _Placed:
    storage, offset, shape, stride = note.arguments[:4]
    if not isinstance(storage, Reference):
        raise TypeError("a tensor without a storage")
    kind, stored, key, _, count = storage.identity[:5]
    if kind != "storage" or not isinstance(stored, Name) or not isinstance(key, str):
        raise TypeError("a storage without a type or a name")
    dtype = _STORAGES[str(stored)]
    shown = dtype
    if note.called.endswith("_v3"):
        named = note.arguments[6]
        shown = _DTYPES[str(named) if isinstance(named, Name) else ""]
    shape, stride = _naturals(shape), _naturals(stride)
    if len(shape) != len(stride):
        raise ValueError("as many strides as sizes are needed")
    (offset, count) = _naturals((offset, count))
    return _Placed(key, dtype, count, shown, offset, shape, stride)


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
