"""Signatures see what channels compute and nothing else: held against folded rows and against activations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from canon.describe import Signature, describe, sketch_rows
from canon.graph import trace
from tests.preservation import randomize
from tests.recovery.small import Chain, Draft, Gated, Small, example

ZERO = 1e-9


def signature_of(model: Small, name: str) -> tuple[Signature, Any]:
    """The signature of a space that reads the model's input."""
    graph = trace(model, example())
    space = graph.space_named(name)
    tensors = dict(model.state_dict())
    sketches = {p.map: sketch_rows(graph.maps[p.map], graph, tensors, {}, seed=p.map) for p in space.producers
                if graph.maps[p.map].columns is None}  # fmt: skip
    return describe(space, graph, tensors, sketches, ZERO), graph


def folded(model: Chain) -> tuple[Tensor, Tensor]:
    """`a·w` and `a·(bias - mean) + β` of the first layer and its norm: the oracle."""
    state = model.state_dict()
    factor = state["na.weight"] / (state["na.running_var"] + model.na.eps).sqrt()
    offset = factor * (state["a.bias"] - state["na.running_mean"]) + state["na.bias"]
    return factor[:, None] * state["a.weight"].flatten(1), offset


def planted() -> Chain:
    """A chain whose first space holds copies under every disguise, and rows that only look alike."""
    model = randomize(Chain(), seed=1)
    assert isinstance(model, Chain)
    draft = Draft(model)
    same = draft.copy("a", 0, 1.0, 0.0)
    draft.scale(("na.weight", "na.bias"), (), same, 3.0)
    turned = draft.copy("a", 1, 1.0, 0.0)
    for name in ("a.weight", "a.bias", "na.running_mean", "na.weight"):
        draft.state[name][turned] *= -1
    moved = draft.copy("a", 2, 1.0, 0.0)
    draft.state["a.bias"][moved] += 2.0
    draft.state["na.running_mean"][moved] += 2.0
    other = draft.copy("a", 3, 1.0, 0.0)
    draft.state["na.bias"][other] += 0.3
    negative = draft.copy("a", 4, 1.0, 0.0)
    draft.state["na.weight"][negative] *= -1
    return Chain.of(draft.state)


def test_agrees_with_folded_rows() -> None:
    model = planted()
    signature, _ = signature_of(model, "a")
    rows, offsets = folded(model)
    described = torch.cat([rows, offsets[:, None]], 1)
    unit = described / rows.norm(dim=1, keepdim=True)
    width = signature.width
    i, j = (index.flatten() for index in torch.meshgrid(torch.arange(width), torch.arange(width), indexing="ij"))
    near = (unit[i] - unit[j]).norm(dim=1) < 1e-9
    assert np.array_equal(signature.distance(i.numpy(), j.numpy()) < 1e-7, near.numpy())
    assert int(near.sum()) == width + 2 * 3, "three of the five copies are the same channel"


def test_scales_are_the_factors_between_channels() -> None:
    model = planted()
    signature, graph = signature_of(model, "a")
    consumer = graph.space_named("a").consumers[0]
    scale = signature.scales[consumer.tap]
    assert float(scale[6] / scale[0]) == pytest.approx(3.0)
    assert float(scale[7] / scale[1]) == pytest.approx(1.0)


def test_no_scale_passes_a_saturating_activation() -> None:
    model = randomize(Gated(), seed=2)
    assert isinstance(model, Gated)
    draft = Draft(model)
    copy = draft.copy("a", 0, 1.0, 0.0)
    draft.scale(("na.weight", "na.bias"), (), copy, 2.0)
    exact = draft.copy("a", 1, 1.0, 0.0)
    draft.scale(("a.weight", "a.bias", "na.running_mean"), (), exact, 2.0)
    draft.state["na.weight"][exact] /= 2
    signature, _ = signature_of(Gated.of(draft.state), "a")
    apart = signature.distance(np.array([0, 1]), np.array([copy, exact]))
    assert float(apart[0]) > 0.1
    assert float(apart[1]) < 1e-9


def test_the_order_of_channels_does_not_matter() -> None:
    model = planted()
    draft = Draft(model, seed=9)
    before, _ = signature_of(model, "a")
    order = torch.randperm(draft.width("a"), generator=torch.Generator().manual_seed(9))
    draft.shuffle("a")
    after, _ = signature_of(Chain.of(draft.state), "a")
    for old, new in zip(before.blocks, after.blocks, strict=True):
        np.testing.assert_allclose(new, old[order.numpy()], rtol=1e-7, atol=1e-7)
