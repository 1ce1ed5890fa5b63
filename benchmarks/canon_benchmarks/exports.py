"""What people do to a network on its way into an ONNX file: exporters, optimisers, float16, int8.

Each is a tool of its own, called as its documentation says. Exporters write a module, passes make one file of another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from canon._quiet import quiet
from canon.errors import BenchError, import_extra

SIDES: Final = 8
"""Inputs that static quantizers measure activations on."""


def by_torchscript(model: nn.Module, example: Tensor, path: Path, *, fold: bool) -> None:
    """torch's exporter by TorchScript. As it stands it folds norms; in the mode for training it keeps them."""
    mode = torch.onnx.TrainingMode.EVAL if fold else torch.onnx.TrainingMode.PRESERVE
    with quiet(), torch.no_grad():
        torch.onnx.export(
            model, (example,), str(path), dynamo=False, training=mode, do_constant_folding=fold, input_names=["x"],
            dynamic_axes={"x": {0: "n"}},
        )  # fmt: skip


def by_dynamo(model: nn.Module, example: Tensor, path: Path, *, fold: bool) -> None:
    """torch's exporter by torch.export. Without its optimiser it keeps norms; with it, it folds them."""
    with quiet(), torch.no_grad():
        torch.onnx.export(
            model, (example,), str(path), dynamo=True, optimize=fold, external_data=False, verbose=False,
            input_names=["x"], dynamic_shapes=({0: torch.export.Dim("n")},),
        )  # fmt: skip


def _proto(path: Path) -> Any:
    return import_extra("onnx", "onnx").load(path)


def _tool(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise BenchError(f"the package '{name}' is not installed", hint=f"pip install {name}") from error


def simplified(source: Path, target: Path, example: Tensor) -> None:
    """By onnxsim."""
    import onnx

    with quiet():
        model, _ = _tool("onnxsim").simplify(_proto(source))
    onnx.save(model, target)


def slimmed(source: Path, target: Path, example: Tensor) -> None:
    """By onnxslim."""
    import onnx

    with quiet():
        model = _tool("onnxslim").slim(_proto(source))
    onnx.save(model, target)


def optimised(level: str, source: Path, target: Path, example: Tensor) -> None:
    """By onnxruntime, at one of its levels; the highest changes the layout of tensors for the processor at hand."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
    options.optimized_model_filepath = str(target)
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def halved(source: Path, target: Path, example: Tensor) -> None:
    """Float16, by the converter that comes with onnxruntime."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    with quiet():
        model = convert_float_to_float16(_proto(source))
    onnx.save(model, target)


def _prepared(source: Path, target: Path) -> Path:
    """A file as onnxruntime's documentation asks for it before it is quantized: norms folded, constants in place.

    Shapes that the exporter wrote beside the tensors go: the quantizer turns matrices around and leaves their shapes.
    """
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    path = target.with_name(f"prepared_{target.name}")
    with quiet():
        quant_pre_process(str(source), str(path), skip_symbolic_shape=True)
    model = _proto(path)
    del model.graph.value_info[:]
    onnx.save(model, path)
    return path


def dynamically(source: Path, target: Path, example: Tensor) -> None:
    """Weights in int8, by onnxruntime; activations are rounded while the model runs."""
    from onnxruntime import quantization

    prepared = _prepared(source, target)
    with quiet():
        quantization.quantize_dynamic(str(prepared), str(target), per_channel=True)
    prepared.unlink()


def statically(form: str, source: Path, target: Path, example: Tensor) -> None:
    """Weights and activations in int8, by onnxruntime, with scales measured on random inputs."""
    from onnxruntime import quantization

    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(1, *example.shape[1:], generator=generator) for _ in range(SIDES)]
    name = _proto(source).graph.input[0].name

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter([{name: x.numpy()} for x in batches])

        def get_next(self) -> Any:
            return next(self.left, None)

    prepared = _prepared(source, target)
    with quiet():
        quantization.quantize_static(
            str(prepared), str(target), Reader(), quant_format=getattr(quantization.QuantFormat, form),
            per_channel=True, weight_type=quantization.QuantType.QInt8, activation_type=quantization.QuantType.QUInt8,
        )  # fmt: skip
    prepared.unlink()


EXPORTERS: Final[Mapping[str, Callable[..., None]]] = {"torchscript": by_torchscript, "dynamo": by_dynamo}

PASSES: Final[Mapping[str, Callable[[Path, Path, Tensor], None]]] = {
    "onnxsim": simplified,
    "onnxslim": slimmed,
    "onnxruntime basic": partial(optimised, "BASIC"),
    "onnxruntime extended": partial(optimised, "EXTENDED"),
    "onnxruntime all": partial(optimised, "ALL"),
    "float16": halved,
    "int8 dynamic": dynamically,
    "int8 QDQ": partial(statically, "QDQ"),
    "int8 QOperator": partial(statically, "QOperator"),
}


def write(model: nn.Module, example: Tensor, path: Path, exporter: str, then: str, *, fold: bool) -> None:
    """A module as an ONNX file, exported by one tool and then changed by another.

    Args:
        model: In evaluation mode.
        example: An input.
        path: The file to write.
        exporter: One of `EXPORTERS`.
        then: One of `PASSES`, or nothing.
        fold: Whether the exporter is to fold norms.
    """
    first = path.with_name(f"exported_{path.name}") if then else path
    EXPORTERS[exporter](model, example, first, fold=fold)
    if then:
        PASSES[then](first, path, example)
        first.unlink()
