"""Read a folder: everything is known from the config and the headers before a single weight is read."""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from canon._quiet import quiet
from canon._untrusted import Limits
from canon.errors import FileFormatError, reason_of
from canon.graph import ChannelGraph, trace
from canon.graph.inputs import arguments, map_tensors
from canon.graph.sizes import update_sizes
from canon.graph.tensors import StoredTensors, clone_with, tensor_names
from canon.io.folder.build import build_skeleton, build_unfilled, import_package, package_class
from canon.io.folder.config import CONFIG, WIDTHS, Config, read_config
from canon.io.folder.examples import config_example
from canon.io.folder.quantized import Dequantized, Quantized
from canon.io.folder.shards import MappedTensors, find_shards
from canon.io.origin import FileState, file_state
from canon.io.weights import Shards

NOTE = "_canon_folder"
"""Attribute of a model that was read from a folder: what is needed to write one like it."""


@dataclass(frozen=True, eq=False)
class FolderModel:
    """A model from a folder."""

    model: nn.Module
    example: tuple[Any, ...]
    architecture: str
    format: str
    notes: tuple[str, ...]
    states: Mapping[Path, FileState]


def read_folder(folder: Path, limits: Limits, example: Any = None) -> FolderModel:
    """Read a model from a folder. Weights are mapped into memory, and none is read before everything else is known.

    Args:
        folder: Holds config.json and safetensors files.
        limits: The most that it may ask for.
        example: Inputs by name, or None to make them from the config.

    Raises:
        FileFormatError: Whatever is wrong with the folder.
    """
    where = str(folder)
    config_state = file_state(folder / CONFIG) if (folder / CONFIG).is_file() else None
    config = read_config(folder, limits)
    kind = package_class(config, where)
    quantized = Quantized.of(config, where)
    found = find_shards(folder, limits)
    shards = found if quantized is None else quantized.shown(found, where)
    config = config if quantized is None else quantized.plain(config)
    skeleton = build_skeleton(config, where, len(shards.entries))
    fit = _fit(skeleton, shards, kind, where)
    given = config_example(skeleton) if example is None else example
    inputs = arguments(skeleton, given)
    notes = list(fit.notes) + ([] if quantized is None else [quantized.note])
    if fit.converted:
        if quantized is not None:
            raise FileFormatError("quantised weights under older names, or not all of them, are not read", where=where)
        model = _converted(folder, config, kind)
        notes.append("transformers itself read the files: they use older names, or lack numbers that it computes")
    else:
        if fit.widths:
            _check_widths(config, skeleton, shards, fit, inputs, where)
            notes.append(f"{len(fit.widths)} tensors have other widths than the config says")
        stored: StoredTensors = MappedTensors(found)
        stored = stored if quantized is None else Dequantized(stored, shards.entries)
        model = _filled(build_unfilled(config, where), stored, fit, notes)
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    inputs = map_tensors(lambda x: x.to(dtype) if x.is_floating_point() else x, inputs)
    model.__dict__[NOTE] = {"config": config.values, "package": config.package, "shard_bytes": shards.largest,
                            "name": shards.files[0].name, "indexed": shards.index is not None}  # fmt: skip
    states = {folder / CONFIG: config_state, **shards.states} if config_state else dict(shards.states)
    return FolderModel(
        model,
        inputs if isinstance(inputs, tuple) else (inputs,),
        config.architecture,
        f"folder of {config.package}, {len(shards.files)} file{'s' if len(shards.files) > 1 else ''}",
        tuple(notes),
        states,
    )


@dataclass(frozen=True, eq=False)
class _Fit:
    """How the names of the files fit those of the architecture."""

    names: Mapping[str, str]
    """First name in the architecture to the name in the files."""

    widths: tuple[str, ...] = ()
    """First names of tensors whose shape differs from what the config says."""

    notes: tuple[str, ...] = ()
    converted: bool = False


def _fit(skeleton: nn.Module, shards: Shards, kind: Any, where: str) -> _Fit:
    tensors, aliases = tensor_names(skeleton)
    names: dict[str, str] = {}
    unknown = []
    for name in shards.entries:
        if name in aliases:
            names.setdefault(aliases[name], name)
        else:
            unknown.append(name)
    saved = {aliases[name] for name in skeleton.state_dict() if name in aliases}
    optional = re.compile("num_batches_tracked$")
    missing = [name for name in tensors if name in saved and name not in names and not optional.search(name)]
    ignored = [re.compile(pattern) for pattern in getattr(kind, "_keys_to_ignore_on_load_unexpected", None) or ()]
    strange = [name for name in unknown if not any(pattern.search(name) for pattern in ignored)]
    if missing:
        computed = [re.compile(pattern) for pattern in getattr(skeleton, "_keys_to_ignore_on_save", None) or ()]
        left_out = all(any(pattern.search(name) for pattern in computed) for name in missing)
        enough = sum(tensors[name].numel() for name in missing) <= sum(_numel(shards, name) for name in unknown)
        if left_out or (unknown and enough and _has_translation(skeleton)):
            return _Fit({}, converted=True)
        raise FileFormatError(
            f"the weights belong to another model than the config: the files lack '{missing[0]}' "
            f"({len(missing)} tensors missing, {len(strange)} that the architecture does not have)",
            where=where,
            hint="Check that config.json and the weights come from one model",
        )
    for first, name in names.items():
        old, (_, entry) = tensors[first], shards.entries[name]
        narrow = entry.dtype.is_floating_point and entry.dtype.itemsize < 2  # numbers of 8 bits need scales
        if len(entry.shape) != old.ndim or entry.dtype.is_floating_point != old.is_floating_point() or narrow:
            raise FileFormatError(
                f"the tensor '{name:.120}' is {entry.dtype} of shape {entry.shape}, and the config asks for "
                f"{old.dtype} of shape {tuple(old.shape)}",
                where=where,
                hint="Check that config.json and the weights come from one model",
            )
    widths = tuple(
        first for first, name in names.items() if shards.entries[name][1].shape != tuple(tensors[first].shape)
    )
    notes = (f"{len(strange)} tensors of the files are not part of the architecture and were left out, "
             f"such as '{strange[0]:.80}'",) if strange else ()  # fmt: skip
    return _Fit(names, widths, notes)


def _numel(shards: Shards, name: str) -> int:
    return math.prod(shards.entries[name][1].shape)


def _check_widths(config: Config, skeleton: nn.Module, shards: Shards, fit: _Fit, inputs: Any, where: str) -> None:
    """Other widths than the config's are fine where channels are free to be more or fewer, and nowhere else.

    What Canon wrote lists them in the config. For anybody else's the architecture is traced, without a number of it.
    """
    tensors, _ = tensor_names(skeleton)
    listed = config.values.get(WIDTHS)
    shapes = {first: shards.entries[fit.names[first]][1].shape for first in fit.widths}
    if isinstance(listed, dict) and all(listed.get(first) == list(shape) for first, shape in shapes.items()):
        return
    free = _free_axes(trace(skeleton, inputs))
    for first, shape in shapes.items():
        asked = tuple(tensors[first].shape)
        if any(
            new != old and (first, axis) not in free for axis, (new, old) in enumerate(zip(shape, asked, strict=True))
        ):
            raise FileFormatError(
                f"the weights do not fit the config: '{first}' has shape {shape}, and the config asks for {asked}",
                where=where,
                hint="Check that config.json and the weights come from one model",
            )


def _free_axes(graph: ChannelGraph) -> set[tuple[str, int]]:
    """The axes of tensors that may be longer or shorter."""
    free = {space.id for space in graph.free}
    found: set[tuple[str, int]] = set()
    for linear in graph.maps:
        if any(segment.space in free for segment in linear.rows):
            found |= {(linear.weight, linear.row_axis), *([(linear.bias, 0)] if linear.bias else [])}
        if any(segment.space in free for segment in linear.columns or ()):
            found.add((linear.weight, linear.column_axis))
    for space in graph.free:
        found |= {(name, stage.axis) for stage in space.stages for name in stage.params.values()}
    return found


def _filled(model: nn.Module, stored: StoredTensors, fit: _Fit, notes: list[str]) -> nn.Module:
    """The architecture with the files' tensors in place, each as wide as it is."""
    tensors, _ = tensor_names(model)
    found = {first: stored[name] for first, name in fit.names.items()}
    kinds = {tensor.dtype for tensor in found.values() if tensor.is_floating_point()}
    if len(kinds) > 1:
        widest = torch.promote_types(*list(kinds)[:2]) if len(kinds) == 2 else torch.float32
        notes.append(f"the files hold several float types; all were read as {str(widest).removeprefix('torch.')}")
        found = {name: t.to(widest) if t.is_floating_point() else t for name, t in found.items()}
    dtype = next((t.dtype for t in found.values() if t.is_floating_point()), torch.float32)
    replaced: dict[int, Tensor] = {}
    for first, tensor in tensors.items():
        if first in found:
            replaced[id(tensor)] = _parameter(found[first], tensor)
        elif tensor.is_meta:
            replaced[id(tensor)] = _parameter(torch.zeros(tensor.shape, dtype=tensor.dtype), tensor)
        elif tensor.dtype == torch.float32 and dtype == torch.float64:
            replaced[id(tensor)] = tensor.to(dtype)
    result = clone_with(model, replaced)
    for module in result.modules():
        update_sizes(module)
    return result.eval()


def _parameter(data: Tensor, like: Tensor) -> Tensor:
    return nn.Parameter(data, requires_grad=data.is_floating_point()) if isinstance(like, nn.Parameter) else data


def _has_translation(skeleton: nn.Module) -> bool:
    """Whether transformers translates names of older files for this class."""
    try:
        mapping: Any = importlib.import_module("transformers.conversion_mapping")
        return bool(mapping.get_model_conversion_mapping(skeleton))
    except Exception:
        return False


def _converted(folder: Path, config: Config, kind: Any) -> nn.Module:
    """Read by transformers itself, which knows older names; nothing may be left to chance."""
    import_package(config.package)
    try:
        with quiet():
            model, info = kind.from_pretrained(
                str(folder), local_files_only=True, use_safetensors=True, trust_remote_code=False, dtype="auto",
                output_loading_info=True,
            )  # fmt: skip
    except Exception as error:
        raise FileFormatError(f"transformers cannot read the weights: {reason_of(error)}", where=str(folder)) from error
    for what in ("missing_keys", "mismatched_keys", "unexpected_keys", "error_msgs"):
        if info.get(what):
            name = sorted(map(str, info[what]))[0]
            raise FileFormatError(
                f"the weights belong to another model than the config: {what.replace('_', ' ')}, such as '{name:.120}'",
                where=str(folder),
                hint="Check that config.json and the weights come from one model",
            )
    if getattr(model.config, "use_cache", False) is True:
        model.config.use_cache = False
    result: nn.Module = model.eval()
    return result
