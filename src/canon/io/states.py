"""State dicts as `torch.save` writes them (.pt, .pth, .bin): the tensors, without unpickling.

Both forms are read: the archive that torch writes today, and the row of pickles that it wrote before 1.6.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader
from typing import Any, Final

import torch
from torch import Tensor

from canon._safetensors import read_numbers
from canon._untrusted import Limits, damaged, reported
from canon.errors import FileFormatError
from canon.io.archive import Archive
from canon.io.checkpoints import Found, find_state, no_state
from canon.io.pickles import Name, Note, Reference, follow, follow_references
from canon.io.views import View, Views

LEGACY_MAGIC: Final = 0x1950A86A20F9469CFC6C
_STORAGES: Final[dict[str, torch.dtype]] = {
    "torch.DoubleStorage": torch.float64, "torch.FloatStorage": torch.float32, "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16, "torch.LongStorage": torch.int64, "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16, "torch.CharStorage": torch.int8, "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool, "torch.storage.UntypedStorage": torch.uint8,
}  # fmt: skip
_PLAIN: Final = frozenset(f"torch._utils._rebuild_tensor{version}" for version in ("", "_v2", "_v3"))
_DTYPES: Final = {f"torch.{name}": getattr(torch, name) for name in "uint16 float8_e4m3fn float8_e5m2".split()}
_MODULE_HINT: Final = (
    "Save the weights alone: torch.save(model.state_dict(), path), or as safetensors. "
    "With --trust-pickle it is unpickled, which runs whatever code the file holds, with your rights"
)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The tensors of a file, and what is known about how it holds them."""

    tensors: dict[str, Tensor]
    program: str | None = None
    """What the file is, where it is more than a state dict."""

    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Storage:
    """Numbers that tensors are views of."""

    stored: torch.dtype
    """Type that they are counted in."""

    count: int


def read_state(file: BufferedReader, where: str, limits: Limits) -> Checkpoint:
    """The tensors of an archive written by `torch.save` or `torch.jit.save`, by name. No code in it is run."""
    archive = Archive(file, where, limits)
    script = any(name.startswith("code/") for name in archive.records) or "constants.pkl" in archive.records
    if "data.pkl" not in archive.records:
        package = any(name.startswith(".data/") for name in archive.records)
        raise FileFormatError(
            "the archive is a package of code, by torch.package" if package else "the archive holds no state dict",
            where=where,
            hint=_MODULE_HINT if package else "It was written neither by torch.save nor by torch.jit",
        )
    archive.check_byteorder()
    root, _ = follow(archive.read("data.pkl"), where)
    found = _found(root, where, script)
    views, storages = _places(found, where)

    def numbers(view: View) -> Tensor:
        storage = storages[view.storage]
        flat = archive.numbers(f"data/{view.storage}", storage.stored)
        if flat.numel() != storage.count:
            raise damaged(f"the storage '{view.storage:.40}' has another size than the file says", where)
        return flat.view(view.dtype)

    return Checkpoint(_tensors(views, numbers, file, where, limits), found.program, found.notes)


def read_legacy_state(file: BufferedReader, where: str, limits: Limits) -> Checkpoint:
    """The tensors of a file that torch wrote before 1.6."""
    total = file.seek(0, os.SEEK_END)
    limits.check_file(total, where)
    position = 0
    parts = []
    outside: list[Reference] = []
    for _ in range(5):
        file.seek(position)
        part, size, references = follow_references(file.read(limits.header_bytes), where)
        parts.append(part)
        outside += references
        position += size
        if parts[0] != LEGACY_MAGIC:
            raise no_state(parts[0], where, _MODULE_HINT)
    _, _, system, root, keys = parts
    if not isinstance(system, dict) or not system.get("little_endian", True) or not _texts(keys):
        raise damaged("the list of storages is missing, or numbers are big-endian", where)
    found = _found(root, where, False)
    views, storages = _places(found, where)
    storages = _others(outside, where) | storages
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

    return Checkpoint(_tensors(views, numbers, file, where, limits), found.program, found.notes)


def _tensors(
    views: dict[str, View], numbers: Callable[[View], Tensor], file: BufferedReader, where: str, limits: Limits
) -> dict[str, Tensor]:
    limits.check_count(len(views), where)
    made = Views(numbers, file.seek(0, os.SEEK_END), where, limits)
    return {name: made.tensor(view, name) for name, view in views.items()}


def _found(root: Any, where: str, script: bool) -> Found:
    found = find_state(root, script)
    if found is not None:
        return found
    if script:
        raise FileFormatError(
            "the TorchScript program keeps its weights as constants without names (it was frozen)",
            where=where,
            hint="Its code is not run. Save the program before freezing it, or export the original model",
        )
    raise no_state(root, where, _MODULE_HINT)


def _places(found: Found, where: str) -> tuple[dict[str, View], dict[str, _Storage]]:
    """Where the tensors of a state dict lie, and in what."""
    views: dict[str, View] = {}
    storages: dict[str, _Storage] = {}
    for name, note in found.tensors.items():
        if note.called not in _PLAIN:
            raise FileFormatError(
                f"the tensor '{name:.120}' is sparse, quantized, or without numbers",
                where=where,
                hint="Save ordinary tensors: tensor.to_dense(), tensor.dequantize()",
            )
        with reported(f"{where}: {name:.120}"):
            views[name], storage = _placed(note)
            if storages.setdefault(views[name].storage, storage) != storage:
                raise ValueError("a storage has two types or sizes")
    return views, storages


def _others(references: list[Reference], where: str) -> dict[str, _Storage]:
    """All storages that a file names, also those of tensors that are not read: their numbers must be passed over."""
    with reported(where):
        return dict(_storage(reference) for reference in references)


def _storage(reference: Any) -> tuple[str, _Storage]:
    if not isinstance(reference, Reference):
        raise TypeError("a tensor without a storage")
    kind, stored, key, _, count = reference.identity[:5]
    if kind != "storage" or not isinstance(stored, Name) or not isinstance(key, str):
        raise TypeError("a storage without a type or a name")
    (count,) = _naturals((count,))
    if str(stored) not in _STORAGES:
        raise ValueError(f"its numbers are of the type {stored!s:.40}")
    return key, _Storage(_STORAGES[str(stored)], count)


def _placed(note: Note) -> tuple[View, _Storage]:
    storage, offset, shape, strides = note.arguments[:4]
    key, kept = _storage(storage)
    dtype, more = kept.stored, note.arguments[6:]
    if note.called.endswith("_v3"):
        named, *more = more
        dtype = _DTYPES[str(named) if isinstance(named, Name) else ""]
    if any(more):
        raise ValueError("it is kept conjugated or negated")
    (offset,) = _naturals((offset,))
    return View(key, dtype, _naturals(shape), _naturals(strides), offset), kept


def _naturals(values: Any) -> tuple[int, ...]:
    if isinstance(values, Note):  # torch.Size
        (values,) = values.arguments
    if not isinstance(values, tuple | list) or len(values) > 64:
        raise TypeError("expected sizes")
    if not all(type(value) is int and 0 <= value < 1 << 62 for value in values):
        raise ValueError("a size is negative, too large or no number")
    return tuple(values)


def _texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)
