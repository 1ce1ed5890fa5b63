"""Primitives that change a model before channels are injected: the rest of the attack then hides what they did.

Each keeps the function: layers that do nothing, branches that add zero, kernels grown with zeros, linear bases that are
too wide, constants that biases take off again, and units with a shift of minus infinity.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from canon.attacks.channels import Channels
from canon.attacks.interface import Primitive, Setting
from canon.attacks.place import Place, Surroundings
from canon.attacks.thresholds import ordinary_shifts
from canon.describe import Coordinates, constant_values, sketch_rows
from canon.errors import AttackError
from canon.graph import ChannelGraph, LinearMap, Space, Stage, trace
from canon.graph.tensors import tensor_names
from canon.rewrite import SpaceRewrite, replace_tensors, rewrite
from canon.rewrite.kernels import Kernel
from canon.rewrite.offsets import takers
from canon.rewrite.resize import resize


class Prepared(Primitive):
    """A primitive that adds no channels to a plan: its work is done by then."""

    def count(self, channels: Channels, setting: Setting) -> int:
        """None."""
        return 0

    def inject(self, channels: Channels, count: int, setting: Setting) -> Channels:
        """The channels as they are."""
        return channels

    def prepare(self, model: nn.Module, example: Any, ratio: float, generator: torch.Generator) -> nn.Module:
        """A changed copy."""
        changed = self.change(model, example, ratio, generator)
        if changed is None:
            raise AttackError(f"the model has no place for '{self.name}'", hint="Name other operations")
        return changed

    @abstractmethod
    def change(self, model: nn.Module, example: Any, ratio: float, generator: torch.Generator) -> nn.Module | None:
        """A changed copy; None: there is nothing to change."""


def _plain(model: nn.Module, chance: float, generator: torch.Generator) -> Iterator[tuple[str, Any]]:
    """Some of the ordinary two-dimensional convolutions, at least one."""
    found = [(name, layer) for name, layer in model.named_modules() if name and type(layer) is nn.Conv2d]
    chosen = [pair for pair in found if float(torch.rand((), generator=generator)) < chance]
    return iter(chosen or found[:1])


@final
class IdleLayer(Prepared):
    """A convolution that gives what it gets, behind some of the model's own."""

    name: ClassVar[str] = "idle_layer"

    def change(self, model: nn.Module, example: Any, ratio: float, generator: torch.Generator) -> nn.Module | None:
        """Put them in."""
        changed = replace_tensors(model, {})
        for name, layer in list(_plain(changed, ratio, generator)):
            same: Any = nn.Conv2d(layer.out_channels, layer.out_channels, 1, bias=False)
            nn.init.dirac_(same.weight)
            parent, _, own = name.rpartition(".")
            setattr(changed.get_submodule(parent), own, nn.Sequential(layer, same.to(layer.weight)).eval())
        return changed


class _Sum(nn.Module):
    """A layer, and what is added to what it gives."""

    def __init__(self, layer: nn.Module, added: nn.Module) -> None:
        super().__init__()
        self.layer, self.added = layer, added

    def forward(self, x: Tensor) -> Tensor:
        """Both of the same input."""
        result: Tensor = self.layer(x) + self.added(x)
        return result


@final
class IdleBranch(Prepared):
    """A branch that adds zero, beside some of the model's own convolutions."""

    name: ClassVar[str] = "idle_branch"

    def change(self, model: nn.Module, example: Any, ratio: float, generator: torch.Generator) -> nn.Module | None:
        """Put them in: random filters, and a layer of zeros that reads them."""
        changed = replace_tensors(model, {})
        for name, layer in list(_plain(changed, ratio, generator)):
            width, like = max(2, layer.in_channels // 2), layer.weight.detach()
            first: Any = nn.Conv2d(
                layer.in_channels, width, layer.kernel_size, layer.stride, layer.padding, layer.dilation, bias=False
            ).to(like)
            drawn = torch.randn(first.weight.shape, generator=generator, dtype=torch.float64)
            first.weight = nn.Parameter(drawn.to(like) * like.std())
            last: Any = nn.Conv2d(width, layer.out_channels, 1).to(like)
            nn.init.zeros_(last.weight)
            nn.init.zeros_(last.bias)
            parent, _, own = name.rpartition(".")
            branch = nn.Sequential(first, nn.ReLU(), last)
            setattr(changed.get_submodule(parent), own, _Sum(layer, branch).eval())
        return changed


@final
class GrownKernel(Prepared):
    """Kernels with zeros around them, along one axis or both, and the padding that makes room."""

    name: ClassVar[str] = "grown_kernel"

    def change(self, model: nn.Module, example: Any, ratio: float, generator: torch.Generator) -> nn.Module | None:
        """Grow them."""
        changed = replace_tensors(model, {})
        for _, layer in list(_plain(changed, ratio, generator)):
            both = int(torch.randint(1, 4, (), generator=generator))
            more = (both & 1, both >> 1)
            grown = nn.functional.pad(layer.weight.detach(), (more[1], more[1], more[0], more[0]))
            layer.weight = nn.Parameter(grown, requires_grad=layer.weight.requires_grad)
            Kernel.of(layer).without([(-count, -count) for count in more]).settle(layer)
        return changed


class Appended(Prepared):
    """Channels at the end of spaces, written by hand."""

    def change(self, model: nn.Module, example: Any, ratio: float, generator: torch.Generator) -> nn.Module | None:
        """Append to every space that allows it."""
        graph, done, ordinary = trace(model, example), False, ordinary_shifts(model)
        changed = model
        for number in range(len(graph.spaces)):
            space = graph.spaces[number]
            simple = space in graph.free and space.groups == 1 and bool(space.consumers)
            simple = simple and all(p.repeat == 1 for p in space.producers) and all(s.repeat == 1 for s in space.stages)
            if not simple or not self.allowed(space, graph, ordinary):
                continue
            count = math.ceil(ratio * space.width)
            source = torch.cat([torch.arange(space.width), torch.arange(count) % space.width])
            share = (torch.arange(source.numel()) < space.width).double()
            changed = rewrite(changed, graph, {space.id: SpaceRewrite.expansion(source, share, space.width)})
            graph, done = resize(graph, {space.id: source.numel()}), True
            with torch.no_grad():
                tensors = {name: tensor.detach() for name, tensor in tensor_names(changed)[0].items()}
                self.write(graph.spaces[number], graph, tensors, space.width, generator)
        return changed if done else None

    @abstractmethod
    def allowed(self, space: Space, graph: ChannelGraph, ordinary: frozenset[str]) -> bool:
        """Whether a space allows it."""

    @abstractmethod
    def write(
        self, space: Space, graph: ChannelGraph, tensors: dict[str, Tensor], first: int, generator: torch.Generator
    ) -> None:
        """Write the channels from `first` on, which are copies that nothing reads, in place."""


def _columns(space: Space, graph: ChannelGraph, tensors: dict[str, Tensor]) -> Iterator[tuple[LinearMap, Any, Tensor]]:
    """Every layer that reads a space, the consumer, and its columns, `rows x width x rest`, in place."""
    for consumer in space.consumers:
        linear = graph.maps[consumer.map]
        moved = tensors[linear.weight].movedim((linear.row_axis, linear.column_axis), (0, 1))
        part = moved[:, consumer.offset : consumer.offset + space.width * consumer.repeat]
        yield linear, consumer, part.unflatten(1, (space.width, consumer.repeat))


def _like(columns: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Random columns as large as those that are there."""
    drawn = torch.randn(columns.shape[0], count, *columns.shape[2:], generator=generator, dtype=torch.float64)
    return (drawn * float(columns.std())).to(columns)


@final
class Endless(Appended):
    """Units with a shift of minus infinity, which a ReLU never lets pass."""

    name: ClassVar[str] = "endless"

    def allowed(self, space: Space, graph: ChannelGraph, ordinary: frozenset[str]) -> bool:
        """A shift before an activation that gives zero for it."""
        place = Place(space, Surroundings(graph, ordinary))
        # A norm behind the activation would shift the zero away.
        if place.data_obstacle or any(
            s.params and place.depths.levels.get(s.inputs[0]) == "zero" for s in space.stages
        ):
            return False
        bent = [s.function for s in space.stages if s.kind == "activation" and s.reach == "pointwise"]
        return all(f is not None and float(f(torch.tensor([-math.inf]))[0]) == 0 for f in bent)

    def write(
        self, space: Space, graph: ChannelGraph, tensors: dict[str, Tensor], first: int, generator: torch.Generator
    ) -> None:
        """Infinity into every shift, and any columns."""
        shifts = Place(space, Surroundings(graph, frozenset())).valves
        places = [(graph.maps[p.map].bias, p.offset) for p in space.producers]
        places += [(s.params.get("bias"), s.offset) for s in space.stages if s.kind == "norm"]
        for name, offset in places:
            if name is not None and name in shifts:
                tensors[name][offset + first : offset + space.width] = -math.inf
        for _, _, columns in _columns(space, graph, tensors):
            columns[:, first:] = _like(columns[:, :first], space.width - first, generator)


@final
class Constant(Appended):
    """Channels that have one value always, read where no padding is, and taken off in what takes up offsets."""

    name: ClassVar[str] = "constant"

    def allowed(self, space: Space, graph: ChannelGraph, ordinary: frozenset[str]) -> bool:
        """Every reader can take an offset up, and something makes the constant."""
        known = takers(graph)
        shifted = any(graph.maps[p.map].bias for p in space.producers) or any(
            stage.kind == "norm" and "bias" in stage.params for stage in space.stages
        )
        return shifted and all(known[c.map] is not None for c in space.consumers) and not any(
            space.id in {s.space for s in graph.maps[c.map].rows} for c in space.consumers
        )  # fmt: skip

    def write(
        self, space: Space, graph: ChannelGraph, tensors: dict[str, Tensor], first: int, generator: torch.Generator
    ) -> None:
        """Rows of zeros, shifts above zero, and columns of inner entries."""
        count = space.width - first
        for producer in space.producers:
            linear, rows = graph.maps[producer.map], slice(producer.offset + first, producer.offset + space.width)
            tensors[linear.weight].movedim(linear.row_axis, 0)[rows] = 0
            if linear.bias is not None:
                tensors[linear.bias][rows] = 0.5 + torch.rand(count, generator=generator).to(tensors[linear.bias])
        for stage in space.stages:
            if stage.kind == "norm" and "bias" in stage.params:
                rows = slice(stage.offset + first, stage.offset + space.width)
                tensors[stage.params["bias"]][rows] = 0.5
                tensors[stage.params["mean"]][rows] = -torch.rand(count, generator=generator).to(
                    tensors[stage.params["mean"]]
                )
                tensors[stage.params["weight"]][rows] = tensors[stage.params["weight"]][rows].abs()
        plain = {s.id: Coordinates.plain(s.width) for s in graph.spaces}
        sketches = {p.map: sketch_rows(graph.maps[p.map], graph, tensors, plain) for p in space.producers}
        values = constant_values(space, graph, tensors, sketches, 0.0).values
        known = takers(graph)
        for linear, consumer, columns in _columns(space, graph, tensors):
            value = torch.from_numpy(values[consumer.point][first:])
            if not bool(value.isfinite().all()):
                continue
            drawn = _like(columns[:, :first], count, generator)
            if linear.zero_padding:
                inner = torch.zeros(drawn.shape[3:], dtype=torch.bool)
                pads = zip(linear.cropping or (), drawn.shape[3:], strict=True)
                inner[tuple(slice(pad, size - pad) for pad, size in pads)] = True
                drawn = drawn * inner.to(drawn)
            columns[:, first:] = drawn
            offset = torch.einsum("onr,n->o", drawn.double().flatten(2), value.to(drawn.device).double())
            taker = known[consumer.map]
            if isinstance(taker, Stage):
                tensors[taker.params["mean"]][taker.offset : taker.offset + len(offset)] += offset.to(drawn)
            elif taker is not None:
                tensors[taker] -= offset.to(tensors[taker])


@final
class WideBasis(Appended):
    """Sums of channels where no function stands between two layers, read and taken off again by the same readers."""

    name: ClassVar[str] = "wide_basis"

    def allowed(self, space: Space, graph: ChannelGraph, ordinary: frozenset[str]) -> bool:
        """Nothing but norms right behind layers, and sums."""
        made = {producer.point for producer in space.producers}
        return all(s.kind == "add" or (s.kind == "norm" and "bias" in s.params and s.inputs[0] in made)
                   for s in space.stages)  # fmt: skip

    def write(
        self, space: Space, graph: ChannelGraph, tensors: dict[str, Tensor], first: int, generator: torch.Generator
    ) -> None:
        """Rows are sums of rows with their norms taken in; behind them stands a norm that does nothing."""
        count = space.width - first
        mix = torch.randn(count, first, generator=generator, dtype=torch.float64) / first**0.5
        negative = torch.arange(count) % 2 == 0
        copies = -torch.eye(first, dtype=torch.float64)[torch.randint(first, (count,), generator=generator)]
        mix = torch.where(negative[:, None], copies, mix)
        norms = {stage.inputs[0]: stage for stage in space.stages if stage.kind == "norm"}
        for producer in space.producers:
            linear, stage = graph.maps[producer.map], norms.get(producer.point)
            factor, shift = torch.ones(first, dtype=torch.float64), torch.zeros(first, dtype=torch.float64)
            if stage is not None:
                own = {role: tensors[name][stage.offset : stage.offset + space.width] for role, name in
                       stage.params.items()}  # fmt: skip
                old = {role: part[:first].double() for role, part in own.items()}
                factor = old["weight"] / torch.sqrt(old["var"] + stage.eps)
                shift = old["bias"] - factor * old["mean"]
                own["weight"][first:], own["var"][first:] = (1 + stage.eps) ** 0.5, 1.0
                own["mean"][first:], own["bias"][first:] = 0.0, (mix @ shift).to(own["bias"])
            rows = tensors[linear.weight].movedim(linear.row_axis, 0)[producer.offset : producer.offset + space.width]
            rows[first:] = torch.tensordot(mix * factor, rows[:first].double(), 1).to(rows)
            if linear.bias is not None:
                bias = tensors[linear.bias][producer.offset : producer.offset + space.width]
                bias[first:] = ((mix * factor) @ bias[:first].double()).to(bias)
        for _, _, columns in _columns(space, graph, tensors):
            drawn = _like(columns[:, :first], count, generator)
            columns[:, first:] = drawn
            columns[:, :first] -= torch.einsum("on...,ni->oi...", drawn.double(), mix).to(columns)
