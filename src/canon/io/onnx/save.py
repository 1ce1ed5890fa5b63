"""`save_onnx`: a module as an ONNX file.

torch's exporter does the translation. What it leaves is tidied: shapes that are known are computed, biases of zeros
that it made up go, and so do its notes, which hold paths of the machine. Tensors keep the names that they have in the
module. The same model gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from canon._files import atomic_path
from canon._quiet import quiet
from canon._version import __version__
from canon.errors import CanonError, MissingExtraError, UnsupportedModelError, reason_of
from canon.graph.tracer import check_example, check_model
from canon.rewrite import fold_norms as fold

LARGEST: Final = (1 << 31) - 1
"""Bytes of a protocol buffer."""

ALLOWED: Final = 1e-3
"""Largest relative difference between the outputs of the module and of the file; a wrong graph shows at once."""


class ExportError(CanonError):
    """A model cannot be written as ONNX."""


def save_onnx(
    model: nn.Module,
    example: Tensor | tuple[Any, ...],
    path: str | Path,
    *,
    fold_norms: bool = False,
    force: bool = False,
) -> None:
    """Write a model as ONNX, whole or not at all. The size of the batch stays open where the model allows it.

    Where onnxruntime is installed, the file is run on the example before it gets its name.

    Args:
        model: A module in evaluation mode. It is not changed.
        example: An input tensor, or a tuple of the forward pass's arguments.
        path: The file to write.
        fold_norms: Fold every norm that stands behind a convolution or linear layer into it.
        force: Replace an existing file.

    Raises:
        ExportError: torch cannot export the model, the file would be too large, or it computes something else.
    """
    check_model(model)
    inputs = example if isinstance(example, tuple) else (example,)
    check_example(model, inputs)
    with atomic_path(path, force=force) as target:
        given = fold(model, inputs).model if fold_norms else model
        proto = _exported(given, inputs)
        _tidy(proto, {name for name, _ in [*given.named_parameters(), *given.named_buffers()]})
        _forget_unused(proto.graph)
        if proto.ByteSize() > LARGEST:
            raise ExportError("the model is larger than 2 GiB, which one ONNX file cannot hold", where=str(path))
        target.write_bytes(proto.SerializeToString(deterministic=True))
        _check(model, inputs, target)


def _exported(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    """The model with an open batch, or with the sizes of the example where it takes no others."""
    try:
        return _export(model, inputs, open_batch=True)
    except ExportError:
        try:
            return _export(model, inputs, open_batch=False)
        except ExportError:
            pass
        raise  # the first reason: that the batch is fixed is none


def _export(model: nn.Module, inputs: tuple[Any, ...], *, open_batch: bool) -> Any:
    """The model as torch's exporter writes it."""
    try:
        import onnxscript.optimizer
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "onnx", "onnx") from error
    given, axes = inputs, None
    if open_batch:
        # An axis of size one would be taken to be of that size for ever.
        given = tuple(_repeated(x) if isinstance(x, Tensor) else x for x in inputs)
        axes = tuple({0: torch.export.Dim.AUTO} if isinstance(x, Tensor) and x.ndim else None for x in given)
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(model, given, dynamo=True, optimize=False, verbose=False, dynamic_shapes=axes)
            assert program is not None, "without a file name a program is returned"
            onnxscript.optimizer.fold_constants(program.model)
            onnxscript.optimizer.remove_unused_nodes(program.model)
            return program.model_proto
    except Exception as error:
        raise ExportError(
            f"torch cannot export the model: {reason_of(error)}",
            where=type(model).__name__,
            hint="Is every operation of its forward pass one of torch?",
        ) from error


def _repeated(x: Tensor) -> Tensor:
    return x.repeat(2, *[1] * (x.ndim - 1)) if x.ndim and x.shape[0] == 1 else x


def _tidy(proto: Any, names: set[str]) -> None:
    """Remove what the exporter adds: notes, and biases of zeros."""
    from onnx import numpy_helper

    graph = proto.graph
    del graph.value_info[:]
    for holder in (proto, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        del holder.metadata_props[:]
        holder.doc_string = ""
    proto.producer_name, proto.producer_version = "canon", __version__
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type in ("Conv", "ConvTranspose") and len(node.input) == 3 and node.input[2] not in names:
            bias = tensors.get(node.input[2])
            if bias is not None and not numpy_helper.to_array(bias).any():
                del node.input[2]


def _forget_unused(graph: Any) -> None:
    """Drop initialisers that nothing reads."""
    used = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    for tensor in [t for t in graph.initializer if t.name not in used]:
        graph.initializer.remove(tensor)


def _check(model: nn.Module, inputs: tuple[Any, ...], path: Path) -> None:
    """Run the file, where onnxruntime is there to do it."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        feeds = [x.detach().cpu().numpy() for x in inputs if isinstance(x, Tensor)]
        got = session.run(None, {port.name: x for port, x in zip(session.get_inputs(), feeds, strict=True)})
    except Exception as error:
        raise ExportError(f"onnxruntime cannot run the exported model: {reason_of(error)}", where=str(path)) from error
    with torch.no_grad():
        result = model(*inputs)
    expected = [result] if isinstance(result, Tensor) else list(result.values() if isinstance(result, dict) else result)
    for mine, theirs in zip(expected, got, strict=True):
        reference = mine.detach().double().cpu().numpy()
        if not np.isfinite(reference).all():
            raise UnsupportedModelError("the model gives NaN or infinity for the example")
        size = max(float(np.abs(reference).max(initial=0.0)), 1e-30)
        difference = float(np.abs(reference - theirs.astype(np.float64)).max(initial=0.0))
        if not difference <= ALLOWED * size:
            raise ExportError(
                f"the exported model differs from the module: {difference:.3g} at outputs of {size:.3g}",
                where=str(path),
                hint="Nothing was written; please report the case",
            )
