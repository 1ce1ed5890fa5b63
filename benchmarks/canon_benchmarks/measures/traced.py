"""How much of the public architectures a trace can follow.

Models are built without weights, on the meta device where their constructor allows it, so that the largest cost no
more than the smallest.
"""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from typing import Any, Final

import torch
from torch import nn

from canon.bench.lab import Setup
from canon.bench.measures.sheet import Sheet
from canon.graph import ChannelGraph, trace
from canon.zoo import import_timm, import_torchvision
from canon_benchmarks.cases import Traced
from canon_benchmarks.patterns import PATTERNS

NOT_CHECKED: Final = ("convnext_large", "regnet_y_128gf", "vit_h_14", "vit_l_16", "vit_l_32")
"""Models with more than 150 million parameters, whose rewrites are not run: several copies in float64 are too much."""


def count(graph: ChannelGraph) -> dict[str, Any]:
    """Row producers (weights of convolutions and linear layers) whose rows may all change, spaces, and the first reason
    of every pinned space with the number of producers that it pins."""
    pinned: dict[str, str] = {}
    rigid: set[str] = set()
    for linear in graph.maps:
        for segment in linear.rows:
            pins = graph.spaces[segment.space].pins
            if pins:
                pinned.setdefault(linear.weight, pins[0].reason)
            elif graph.spaces[segment.space].rigid is not None:
                rigid.add(linear.weight)
    weights = {linear.weight for linear in graph.maps}
    kernels = {s.params["weight"] for space in graph.spaces for s in space.stages if s.kind == "depthwise"}
    return {
        "front_end": graph.method,
        "free": len(weights) - len(pinned),
        "total": len(weights),
        "rigid": len(rigid - set(pinned)),
        "free_spaces": len(graph.free) + len(graph.rigid),
        "spaces": len(graph.spaces),
        "depthwise": len(kernels),
        "pins": [list(pin) for pin in Counter(pinned.values()).most_common()],
    }


def build(name: str, source: str) -> tuple[nn.Module, int]:
    """A model without weights, and the height and width of its images."""
    if source == "torchvision":
        options: dict[str, Any] = {}
        if name in ("googlenet", "inception_v3"):
            options = {"init_weights": False, "aux_logits": False}
        # A regnet reads its own tensors while it is built.
        with torch.device("cpu" if name.startswith("regnet") else "meta"):
            model = import_torchvision().models.get_model(name, weights=None, **options)
        return model.eval(), 299 if name == "inception_v3" else 224
    if source == "patterns":
        return PATTERNS[name]().eval(), 64
    timm = import_timm()
    config = timm.get_pretrained_cfg(name)
    size = int(config.input_size[-1]) if config is not None else 224
    try:
        with torch.device("meta"):
            model = timm.create_model(name, pretrained=False)
    except (RuntimeError, NotImplementedError):
        model = timm.create_model(name, pretrained=False)
    return model.eval(), size


def measure_traced(case: Traced, setup: Setup, sheet: Sheet) -> None:
    """Trace one model by name."""
    if case.source != "patterns":
        sheet.note(version=importlib.import_module(case.source).__version__)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model, size = build(case.model, case.source)
        device = next(model.parameters()).device
        sheet.begin()
        sheet.note(**count(trace(model, torch.empty(1, 3, size, size, device=device))))
        sheet.lap("trace")


def torchvision_names() -> tuple[str, ...]:
    """Every classification model of torchvision."""
    models = import_torchvision().models
    return tuple(sorted(models.list_models(module=models)))
