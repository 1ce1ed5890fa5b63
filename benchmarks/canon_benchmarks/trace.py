"""What a trace costs, beside what torch.fx and shape propagation alone cost in the same run."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from canon.graph import trace
from canon.zoo import example_input, model
from canon_benchmarks.clock import time_of
from canon_benchmarks.micro import Measurement


def plain_trace(network: nn.Module, example: Tensor) -> None:
    """`torch.fx.symbolic_trace` and shape propagation on meta tensors: the least any tracer needs."""
    ShapeProp(fx.symbolic_trace(network)).propagate(example)


def measure_trace(name: str = "densenet121", repeats: int = 5) -> Measurement:
    """Time of `canon.trace` over that of the plain trace."""
    network, example = model(name), example_input(name)
    meta, meta_example = copy.deepcopy(network).to("meta"), example.to("meta")
    with torch.no_grad():
        plain = time_of(lambda: plain_trace(meta, meta_example), repeats=repeats, device="cpu").median
    ours = time_of(lambda: trace(network, example), repeats=repeats, device="cpu").median
    note = f"canon.trace {ours * 1e3:.0f} ms, symbolic_trace and meta shapes {plain * 1e3:.0f} ms"
    return Measurement(f"trace {name}", ours / plain, "x", limit=3.0, note=note)
