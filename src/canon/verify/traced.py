"""A model of a comparison with what is known of it, so that nothing has to be found twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from canon.errors import UnsupportedModelError
from canon.graph import ChannelGraph, trace, trace_like
from canon.graph.experts import channel_tensors
from canon.graph.tensors import not_finite
from canon.rewrite import settled
from canon.verify.architecture import Architecture
from canon.verify.coverage import used_tensors


@dataclass(frozen=True, eq=False)
class Traced:
    """A model, its channel graph and its tensors."""

    model: nn.Module
    example: Tensor | tuple[Any, ...]
    graph: ChannelGraph
    tensors: Mapping[str, Tensor]
    architecture: Architecture

    @staticmethod
    def of(model: nn.Module, example: Tensor | tuple[Any, ...]) -> Traced:
        """Trace a model."""
        graph = trace(model, example)
        tensors = channel_tensors(model, graph.orders)
        return Traced(model, example, graph, tensors, Architecture.of(graph, tensors))

    @staticmethod
    def like(model: nn.Module, example: Tensor | tuple[Any, ...], other: Traced) -> Traced:
        """Trace a model that is probably built like another one."""
        graph = trace_like(model, example, other.model, other.graph)
        tensors = channel_tensors(model, graph.orders)
        same = graph is other.graph
        return Traced(model, example, graph, tensors, other.architecture if same else Architecture.of(graph, tensors))

    @cached_property
    def settled(self) -> Mapping[str, Tensor]:
        """The tensors with offsets in the layers that alone read them: nobody can tell where these stood."""
        return settled(self.tensors, self.graph)

    @cached_property
    def used(self) -> tuple[str, ...]:
        """The tensors that the forward pass uses, in the order of their first use."""
        return used_tensors(self.model, self.example)

    def check_finite(self, *, but_layers: bool = False) -> None:
        """Refuse numbers that cannot be compared; with `but_layers`, not in weights whose rows will be described."""
        seen = {linear.weight for linear in self.graph.maps} if but_layers else set()
        for name in not_finite((name, self.tensors[name]) for name in self.tensors if name not in seen):
            raise UnsupportedModelError("the tensor holds NaN or infinity", where=name)
