"""Write a model as a program of torch.export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from canon._quiet import quiet
from canon.errors import TraceError, reason_of


def save_program(model: nn.Module, example: tuple[Any, ...], path: Path) -> None:
    """Export a model and write it. The first axis of every input stays open where the forward pass allows that.

    The file says what the model computes and nothing about the machine that wrote it.
    """
    open_axes = tuple({0: torch.export.Dim.AUTO} if isinstance(x, Tensor) and x.ndim else None for x in example)
    try:
        with torch.no_grad(), quiet():
            program = torch.export.export(model, example, dynamic_shapes=open_axes, strict=False)
            for module in program.graph_module.modules():
                for node in getattr(module, "graph", torch.fx.Graph()).nodes:
                    node.meta.pop("stack_trace", None)
            torch.export.save(program, path)
    except Exception as error:  # torch.export raises what its many parts raise
        raise TraceError(
            f"the model cannot be exported: {type(error).__name__}: {reason_of(error)}",
            where=str(path),
            hint="Write its weights instead, as safetensors",
        ) from error
