"""`load_onnx`: an ONNX file as an ordinary module. The file may come from anybody."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, fx, nn

from canon._untrusted import Limits
from canon.errors import CanonError, FileFormatError, LimitError, UnsupportedModelError, reason_of
from canon.io.onnx.build import FAILURES, build
from canon.io.onnx.model import Model, settled_shapes
from canon.io.onnx.parse import parse
from canon.io.onnx.tensors import TensorReader


def load_onnx(path: Path, limits: Limits, *, size: Sequence[int] | None = None) -> nn.Module:
    """Read an ONNX model. No code of the file is run, and memory is bounded by the limits.

    Args:
        path: The file. Tensors may stand in other files of its folder.
        limits: The most that it may ask for.
        size: Shape of one input, without the batch, or one number, for the axes that the file leaves open. Some models
            compute with these sizes, and cannot be read without them.

    Returns:
        A module of plain layers, in evaluation mode.

    Raises:
        FileFormatError: The file is damaged, hostile, or does not fit together.
        UnsupportedModelError: It uses operators that Canon does not read.
    """
    if not path.is_file():
        raise FileFormatError("no such file", where=str(path))
    try:
        return _built(sized(parse(path, limits), size), path, limits)
    except CanonError as error:
        if error.where is None:
            error.where = str(path)
        raise
    except (*FAILURES, MemoryError, OSError, RecursionError) as error:
        raise FileFormatError(f"the file cannot be read as ONNX: {reason_of(error)}", where=str(path)) from error


def _built(model: Model, path: Path, limits: Limits) -> fx.GraphModule:
    """The model with an open batch where the file leaves it open, or for one sample where it takes no more."""
    reader = TensorReader(path, limits)
    try:
        result = build(model, reader)
        result.meta["files"] = reader.states
        return result
    except LimitError:
        raise
    except (FileFormatError, UnsupportedModelError):
        single = for_one_sample(model)
        if single is model:
            raise
        try:
            found = build(single, reader)
        except CanonError:
            found = None
        if found is None:
            raise
    found.meta["files"] = reader.states
    found.meta["notes"] += ("the file was read for one sample at a time: it does not fit together for several",)
    return found


def for_one_sample(model: Model) -> Model:
    """The model with a batch of one where the file leaves its size open; the model itself where it leaves none open."""
    shapes = [port.shape for port in model.inputs if port.shape]
    if all(isinstance(shape[0], int) and shape[0] > 0 for shape in shapes):
        return model
    counted = {shape[0] for shape in shapes if isinstance(shape[0], str) and shape[0]}

    def fixed(size: int | str | None, axis: int) -> int | str | None:
        open_batch = not (isinstance(size, int) and size > 0) and (axis == 0 or size in counted)
        return 1 if open_batch else size

    inputs = [
        replace(port, shape=tuple(fixed(size, axis) for axis, size in enumerate(port.shape))) if port.shape else port
        for port in model.inputs
    ]
    return replace(model, inputs=tuple(inputs))


def sized(model: Model, size: Sequence[int] | None) -> Model:
    """A model whose inputs have this size where the file leaves theirs open; one number counts for all axes.

    An axis that counts samples, here or in another input, stays open.
    """
    if size is None:
        return model
    counted = {port.shape[0] for port in model.inputs if port.shape and isinstance(port.shape[0], str)} - {""}
    inputs = []
    for port in model.inputs:
        shape = port.shape
        if shape is not None and len(size) in (1, len(shape) - 1):
            wanted = list(size) * (len(shape) - 1) if len(size) == 1 else size
            fixed = (
                old if (isinstance(old, int) and old > 0) or old in counted else new
                for old, new in zip(shape[1:], wanted, strict=True)
            )
            port = replace(port, shape=(*shape[:1], *fixed))
        inputs.append(port)
    return replace(model, inputs=tuple(inputs))


def example_input(model: nn.Module, *, batch: int = 2, side: int = 32, seed: int = 0) -> tuple[Tensor, ...]:
    """Random inputs of the shapes that a model read from an ONNX file takes.

    Args:
        model: What `load_onnx` gave.
        batch: Size of the first axis where the file leaves it open.
        side: Size of other axes that it leaves open.
        seed: Of the random numbers.
    """
    if not isinstance(model, fx.GraphModule) or "inputs" not in model.meta:
        raise FileFormatError("the model was not read from an ONNX file")
    generator = torch.Generator().manual_seed(seed)
    found = []
    inputs = model.meta["inputs"]
    for (_, dtype, _), sizes in zip(inputs, settled_shapes([i[-1] for i in inputs], batch, side), strict=True):
        drawn = torch.randn(sizes, generator=generator)
        found.append(drawn.to(dtype) if dtype.is_floating_point else torch.ones(sizes, dtype=dtype))
    return tuple(found)
