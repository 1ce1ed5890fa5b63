"""Recovery of a model that is larger than memory, tensor by tensor.

Tensors are read when they are needed: once to see what they hold, once or a few times to be described, once to be
merged and once to be written. What stays in memory between is what was decided: sketches, which row reads which column,
sums of merged columns. Outputs are not compared, since that takes both models at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from canon.errors import UnsupportedModelError
from canon.graph import ChannelGraph, trace
from canon.graph.experts import ExpertParts, expert_tensors, part_name, whole_name
from canon.graph.tensors import not_finite, shape_of
from canon.recovery.kernels import convolutions, removable
from canon.recovery.partition import Refinement
from canon.recovery.pipeline import Clock, known_widths
from canon.recovery.reduce import plan
from canon.recovery.report import RecoveryReport, space_report
from canon.recovery.tolerance import Tolerance, sample_of, stored_precision
from canon.rewrite.kernels import Kernel, cropped

Emit = Callable[[str, Tensor], None]
"""Called with each recovered tensor and the name it is stored under."""


def recover_tensors(
    skeleton: nn.Module,
    example: Tensor | tuple[Any, ...],
    tensors: Mapping[str, Tensor],
    emit: Emit,
    *,
    widths: nn.Module | Mapping[str, Tensor] | None = None,
) -> RecoveryReport:
    """Undo structural obfuscation of a stored model, from its tensors alone, one after the other.

    Args:
        skeleton: The suspect's modules in evaluation mode, with tensors of its shapes on the meta device.
        example: An input tensor or tuple of inputs.
        tensors: The suspect's tensors, by the names of its state dict.
        emit: Takes every tensor of the recovered model, changed or not.
        widths: A model or state dict whose layer widths are the clean ones, if they are known.

    Raises:
        UnsupportedModelError: A tensor of the skeleton is missing, or holds no numbers to compare.
    """
    clock = Clock()
    graph = trace(skeleton, example).with_rigid_pinned()
    if graph.orders:
        raise UnsupportedModelError(
            "channels are shuffled, which cannot be followed one tensor after the other",
            where=next(iter(graph.orders))[0],
            hint="Load the whole model and use canon.recover",
        )
    _check_names(graph, skeleton, tensors)
    clock.lap("trace")
    before, tolerance = _first_look(tensors)
    apart = expert_tensors(skeleton)
    tensors = ExpertParts(tensors, apart) if apart else tensors
    with torch.no_grad():
        classes = Refinement(graph, tensors, tolerance).run()
        clock.lap("describe")
        chosen = plan(graph, tensors, classes, tolerance, known_widths(graph, widths))
        clock.lap("reduce")
        writer = _Writer(skeleton, graph, tensors, emit, apart)
        for name, tensor in chosen.write():
            writer.write(name, tensor)
        for name in tensors:
            writer.copy(name)
    clock.lap("rewrite")
    parameters = {name for name, _ in skeleton.named_parameters(remove_duplicate=False)}
    return RecoveryReport(
        method="exact",
        spaces=tuple(
            space_report(s, [(chosen.outcomes[s.id], torch.arange(s.width))], {}, chosen.outcomes[s.id].kept.numel())
            for s in graph.spaces
        ),
        cropped=writer.cropped,
        seconds=clock.laps,
        parameters=(
            sum(size for name, size in before.items() if name in parameters),
            sum(size for name, size in writer.sizes.items() if name in parameters),
        ),
        tolerance=tolerance,
        agreement=None,
    )


class _Writer:
    """Passes tensors on, each once, under every name it is stored under; those of experts when all parts are there."""

    def __init__(
        self,
        skeleton: nn.Module,
        graph: ChannelGraph,
        tensors: Mapping[str, Tensor],
        emit: Emit,
        apart: Mapping[str, int],
    ) -> None:
        self.tensors, self.emit, self.apart = tensors, emit, apart
        self.waiting: dict[str, dict[str, Tensor]] = {}
        self.convolutions = convolutions(skeleton, graph)
        self.cropped: dict[str, tuple[int, ...]] = {}
        self.sizes: dict[str, int] = {}
        self.first = {name: graph.aliases.get(name, name) for name in tensors}
        self.names: dict[str, list[str]] = {}
        for name, first in self.first.items():
            self.names.setdefault(first, []).append(name)

    def write(self, first: str, tensor: Tensor) -> None:
        tensor, layer = tensor.detach(), self.convolutions.get(first)
        ends = () if layer is None else removable(Kernel.of(layer), tensor)
        if ends:
            tensor = cropped(tensor, ends)
            self.cropped[first] = tuple(tensor.shape[2:])
        for name in self.names[first]:
            self.sizes[name] = tensor.numel()
            whole = whole_name(name)
            if whole is None or whole not in self.apart:
                self.emit(name, tensor.contiguous())
                continue
            parts = self.waiting.setdefault(whole, {})
            parts[name] = tensor
            if len(parts) == self.apart[whole]:
                together = torch.stack([parts[part_name(whole, expert)] for expert in range(len(parts))])
                self.sizes[whole] = together.numel()
                self.emit(whole, together)
                del self.waiting[whole]

    def copy(self, name: str) -> None:
        """Write a tensor that did not change."""
        if name not in self.sizes:
            self.write(self.first[name], self.tensors[name])


def _check_names(graph: ChannelGraph, skeleton: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    wanted = {name: tensor for name, tensor in skeleton.state_dict().items() if graph.aliases.get(name, name) == name}
    for name, tensor in wanted.items():
        if name not in tensors:
            raise UnsupportedModelError("the stored model lacks a tensor", where=name, hint="Give the whole model")
        if shape_of(tensors, name) != tensor.shape:
            raise UnsupportedModelError(
                f"stored with shape {tuple(shape_of(tensors, name))}, and the skeleton has {tuple(tensor.shape)}",
                where=name,
                hint="Build the skeleton with the widths of the stored model",
            )


def _first_look(tensors: Mapping[str, Tensor]) -> tuple[dict[str, int], Tolerance]:
    """Sizes by name, and the tolerance that the stored precision asks for."""
    sizes, samples = {}, []
    for name in tensors:
        tensor = tensors[name]
        sizes[name] = tensor.numel()
        if not_finite([(name, tensor)]):
            raise UnsupportedModelError("tensor holds NaN or infinity", where=name, hint="The model is damaged")
        if tensor.is_floating_point():
            samples.append(sample_of(tensor))
        del tensor
    return sizes, Tolerance.of(stored_precision(samples))
