"""Run a model on probes and write down what each channel does where it is read.

A consumer reads a space after the norm and the nonlinearity and before anything mixes channels, so the input of a Conv
or Linear layer is the place that a norm-aware capture must look at. Only scalars per channel and probe are kept, never
activations. Nothing here judges.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.functional import interpolate

from canon.errors import RecoveryError
from canon.graph import ChannelGraph, LinearMap
from canon.graph.opened import has_opened
from canon.graph.probes import drawn_whole
from canon.graph.tensors import tensor_names

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class Capture:
    """What one point did on all probes, relative to its largest summary."""

    summaries: Tensor
    """`width x probes`, float64: u, the mean over positions of ReLU of the activation."""

    low: Tensor
    """Smallest activation of each channel over all probes and positions."""

    high: Tensor
    """Largest activation of each channel."""

    scale: float
    """The largest summary: what the numbers were divided by."""


def make_probes(example: Tensor | tuple[Any, ...], count: int, batch_size: int, seed: int) -> list[tuple[Any, ...]]:
    """The probe set, in batches: the same seed gives the same probes.

    Noise of a random smoothness, contrast and mean per probe: white noise alone looks the same to a deep layer whatever
    its seed, and channels would be told apart by less. Whole numbers lie between the example's smallest and largest.
    """
    inputs = example if isinstance(example, tuple) else (example,)
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for start in range(0, count, batch_size):
        size = min(batch_size, count - start)
        batches.append(tuple(_probe(x, size, generator) for x in inputs))
    return batches


def _probe(x: Any, size: int, generator: torch.Generator) -> Any:
    if not isinstance(x, Tensor) or x.ndim < 2:
        return x
    if x.dtype == torch.bool or not x.numel():
        return x[:1].expand(size, *x.shape[1:])
    if not x.is_floating_point():
        return drawn_whole(x, (size, *x.shape[1:]), generator)
    samples = [_noise(x.shape[1:], generator) for _ in range(size)]
    return torch.stack(samples).to(torch.float32 if x.dtype in HALF else x.dtype)


def _noise(shape: torch.Size, generator: torch.Generator) -> Tensor:
    contrast = 0.25 + 2 * torch.rand(1, generator=generator)
    sample = torch.randn(shape, generator=generator)
    if len(shape) == 3 and min(shape[1:]) >= 4:
        cells = int(torch.randint(2, min(shape[1:]) + 1, (1,), generator=generator))
        coarse = torch.randn(1, shape[0], cells, cells, generator=generator)
        sample = 0.3 * sample + interpolate(coarse, size=shape[1:], mode="bilinear", align_corners=False)[0]
        sample = sample + torch.randn(shape[0], 1, 1, generator=generator)
    return contrast * sample


def capture(model: nn.Module, graph: ChannelGraph, probes: list[tuple[Any, ...]]) -> dict[int, Capture]:
    """By point that a consumer reads: what its channels did. The model is not changed.

    Args:
        model: The model that `graph` was traced from, in evaluation mode.
        graph: Its channel graph.
        probes: Batches of inputs.

    Raises:
        RecoveryError: Only torch.export could trace the model, so its activations cannot be followed by name.
    """
    if graph.method != "fx" or has_opened(model):
        raise RecoveryError(
            "torch.fx cannot trace this model as it is, so no activation can be captured",
            hint="Use method='exact', which needs none",
        )
    if any(p.dtype in HALF for p in model.parameters()):
        # Half precision is for storage: its own rounding would drown what is to be seen.
        model = copy.deepcopy(model).float()
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    recorder = _Recorder(model, graph)
    with torch.no_grad():
        for batch in probes:
            recorder.batch = next((len(x) for x in batch if isinstance(x, Tensor) and x.ndim > 1), 1)
            recorder.seen.clear()
            recorder.run(*[x.to(device) if isinstance(x, Tensor) else x for x in batch])
    return {point: _joined(parts) for point, parts in recorder.parts.items()}


_Part = tuple[Tensor, Tensor, Tensor]


class _Recorder(fx.Interpreter):
    """Runs the forward pass and looks at the inputs of maps."""

    def __init__(self, model: nn.Module, graph: ChannelGraph) -> None:
        super().__init__(model, graph=fx.Tracer().trace(model))
        self.maps: Mapping[str, LinearMap] = {m.node: m for m in graph.maps if m.columns}
        self.orders = {name: torch.tensor(order) for (name, axis), order in graph.orders.items() if axis == 1}
        self.rank = {name: tensor.ndim for name, tensor in tensor_names(model)[0].items()}
        self.parts: dict[int, list[_Part]] = {}
        self.seen: set[int] = set()
        self.batch = 1

    def run_node(self, n: fx.Node) -> Any:
        """Look before running: a layer further on may change its input in place."""
        linear = self.maps.get(n.name)
        if linear is not None:
            args, kwargs = self.fetch_args_kwargs_from_env(n)
            self._look(linear, args[0] if args else kwargs["input"])
        return super().run_node(n)

    def _look(self, linear: LinearMap, x: Tensor) -> None:
        axis = x.ndim - max(1, self.rank[linear.weight] - 1)
        if linear.weight in self.orders:
            x = x.index_select(axis, self.orders[linear.weight].to(x.device))
        for segment in linear.columns or ():
            if segment.point in self.seen:
                continue
            self.seen.add(segment.point)
            part = x.narrow(axis, segment.offset, segment.length).movedim(axis, 0)
            width = segment.length // segment.repeat
            if axis > 0 and part.shape[1] == self.batch:
                part = part.transpose(0, 1).reshape(self.batch, width, -1)
            else:
                part = part.reshape(1, width, -1)  # no batch axis here: the whole pass is one probe
            low, high = torch.aminmax(part, dim=2)
            mean = part.clamp(min=0).mean(dim=2, dtype=torch.float64)
            found = (mean.T.cpu(), low.amin(0).double().cpu(), high.amax(0).double().cpu())
            self.parts.setdefault(segment.point, []).append(found)


def _joined(parts: list[_Part]) -> Capture:
    summaries = torch.cat([p[0] for p in parts], dim=1)
    low = torch.stack([p[1] for p in parts]).amin(0)
    high = torch.stack([p[2] for p in parts]).amax(0)
    largest = summaries.max()
    scale = float(largest) if largest > 0 else 1.0
    return Capture(summaries / scale, low / scale, high / scale, scale)
