"""Write a model as a folder: config and safetensors files, cut where those that it came from were cut."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon._files import OutputError, atomic_path, resumable_folder
from canon.errors import CanonError
from canon.graph.inputs import arguments, map_tensors
from canon.graph.tensors import tensor_names
from canon.io.folder.build import build_skeleton
from canon.io.folder.config import CONFIG, WIDTHS, Config
from canon.io.folder.examples import config_example
from canon.io.folder.load import NOTE
from canon.io.folder.writing import ShardWriter, shapes_of

SHARD_BYTES: Final = 5 << 30
"""Most bytes in one file, where nothing else is known."""

_MOST_TRIALS: Final = 24


def is_folder_model(model: nn.Module) -> bool:
    """Whether a model can be written as a folder: it has a config of transformers or diffusers."""
    return (
        NOTE in model.__dict__ or hasattr(getattr(model, "config", None), "to_dict") or hasattr(model, "_internal_dict")
    )


def save_folder(
    model: nn.Module, target: Path, *, work: str | None = None, progress: Callable[[float], None] | None = None
) -> tuple[str, ...]:
    """Write a model as a new folder, whole or not at all; gives what a user should know about it.

    Args:
        model: The model.
        target: Where to.
        work: A digest of all that the model was made from; files that were finished before are then not written again.
        progress: Told which part is done, from 0 to 1.

    Raises:
        OutputError: The model has no config to write, or there is something at that place.
    """
    if not is_folder_model(model):
        raise OutputError(
            "only models of transformers and diffusers can be written as a folder",
            where=str(target),
            hint="Let the name end in .safetensors, .pt2 or .onnx",
        )
    note = model.__dict__.get(NOTE) or _note(model)
    tensors = _saved(model)
    values, notes = adapted(note, model)
    with atomic_path(target) if work is None else resumable_folder(target, work) as place:
        place.mkdir(exist_ok=True)
        (place / CONFIG).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        stem = "model" if note["package"] == "transformers" else "diffusion_pytorch_model"
        most = note["shard_bytes"] or SHARD_BYTES
        with ShardWriter(place, stem, shapes_of(tensors), most, indexed=note["indexed"]) as writer:
            for done, (name, tensor) in enumerate(tensors.items(), 1):
                writer.add(name, tensor)
                if progress is not None:
                    progress(done / len(tensors))
    return notes


def _saved(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint holds: every tensor once, by its first name."""
    _, aliases = tensor_names(model)
    return {name: tensor for name, tensor in model.state_dict().items() if aliases.get(name, name) == name}


def _note(model: Any) -> dict[str, Any]:
    diffusion = hasattr(model, "_internal_dict")
    values = dict(model._internal_dict) if diffusion else model.config.to_dict()
    values = json.loads(json.dumps(values, default=str))
    if diffusion:
        values["_class_name"] = type(model).__name__
    else:
        values["architectures"] = [type(model).__name__]
    package = "diffusers" if diffusion else "transformers"
    return {"config": values, "package": package, "shard_bytes": 0, "name": "", "indexed": False}


def adapted(note: Mapping[str, Any], model: nn.Module) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The config with the widths that the model has, and what it could not be made to say.

    Every number of the config that equals a width which changed is tried. It stays if less disagrees then and nothing
    that agreed, and the architecture still runs: such a number may be more than a width.
    """
    values = {name: value for name, value in copy.deepcopy(dict(note["config"])).items() if name != WIDTHS}
    shapes = {name: tuple(t.shape) for name, t in tensor_names(model)[0].items()}
    best = _disagreeing(values, note["package"], shapes)
    if best is None:
        return values, ("the architecture cannot be built from its config, which was written as it was",)
    trials = 0
    changed = True
    runs = bool(best) and _runs(values, note["package"])
    while best and changed and trials < _MOST_TRIALS:
        changed = False
        for path, new in _candidates(values, best, shapes):
            trials += 1
            trial = copy.deepcopy(values)
            _set(trial, path, new)
            found = _disagreeing(trial, note["package"], shapes)
            less = found is not None and _axes(found, shapes) < _axes(best, shapes)
            if less and (not runs or _runs(trial, note["package"])):
                values, best, changed = trial, found or {}, True
                break
            if trials >= _MOST_TRIALS:
                break
    if not best:
        return values, ()
    values[WIDTHS] = {name: list(shapes[name]) for name in sorted(best)}
    return values, (
        f"the config cannot say how wide {len(best)} tensors are: Canon reads the folder again, transformers does not",
    )


def _skeleton(values: dict[str, Any], package: str) -> nn.Module:
    architecture = values["architectures"][0] if package == "transformers" else values["_class_name"]
    return build_skeleton(Config(values, package, architecture), "config")


def _disagreeing(
    values: dict[str, Any], package: str, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]] | None:
    """Tensors whose shape is another one than a config asks for, with the latter; None: that is another model."""
    try:
        tensors, _ = tensor_names(_skeleton(values, package))
    except CanonError:
        return None
    if not tensors.keys() <= shapes.keys():
        return None
    return {name: tuple(t.shape) for name, t in tensors.items() if tuple(t.shape) != shapes[name]}


def _axes(wrong: Mapping[str, tuple[int, ...]], shapes: Mapping[str, tuple[int, ...]]) -> set[tuple[str, int]]:
    """What disagrees, axis by axis."""
    return {
        (name, axis)
        for name, asked in wrong.items()
        for axis, (old, new) in enumerate(zip(asked, shapes[name], strict=True))
        if old != new
    }


def _runs(values: dict[str, Any], package: str) -> bool:
    """Whether the architecture that a config asks for takes an example, as far as shapes tell."""
    try:
        model = _skeleton(values, package)
        inputs = arguments(model, config_example(model))
        with torch.no_grad():
            model(*map_tensors(lambda x: x.to("meta"), inputs if isinstance(inputs, tuple) else (inputs,)))
    except Exception:  # whatever a class does with numbers that do not go together
        return False
    return True


def _candidates(
    values: dict[str, Any], best: Mapping[str, tuple[int, ...]], shapes: Mapping[str, tuple[int, ...]]
) -> list[tuple[tuple[str, ...], int]]:
    """Entries of a config that may be a width that changed, each with the number that it may have to be."""
    pairs = {(old, new) for name in best for old, new in zip(best[name], shapes[name], strict=False) if old != new}
    found = []
    for path, value in _numbers(values, ()):
        for old, new in sorted(pairs):
            if value == old or value is None:
                found.append((path, new))
            elif value and old % value == 0 and (new * value) % old == 0:
                found.append((path, new * value // old))
    return found


def _numbers(values: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int | None]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _numbers(value, (*path, name))
        elif type(value) is int and value > 1:
            yield (*path, name), value
        elif value is None and name in ("n_inner", "ffn_dim", "intermediate_size"):
            yield (*path, name), None


def _set(values: dict[str, Any], path: tuple[str, ...], new: int) -> None:
    for name in path[:-1]:
        values = values[name]
    values[path[-1]] = new
