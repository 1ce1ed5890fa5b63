"""Constant channels are those that do not move when the input does."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from canon.describe import constant_values, sketch_rows
from canon.graph import trace
from tests.networks import Net
from tests.preservation import randomize
from tests.recovery.small import Chain, Draft, Gated, example


def values_at(model: nn.Module, name: str, layer: str, smallest: float = 0.0) -> Tensor:
    """What is found for a space at the point where a layer reads it."""
    graph = trace(model, example())
    space = graph.space_named(name)
    tensors = dict(model.state_dict())
    sketches = {p.map: sketch_rows(graph.maps[p.map], graph, tensors, {}, seed=0) for p in space.producers
                if graph.maps[p.map].columns is None}  # fmt: skip
    found = constant_values(space, graph, tensors, sketches, 1e-9, smallest).values
    consumer = next(c for c in space.consumers if graph.maps[c.map].name == layer)
    return torch.from_numpy(found[consumer.point])


def seen(model: nn.Module, layer: str) -> Tensor:
    """The oracle: each channel that a layer reads, if it never moves; NaN for the others."""
    kept: list[Tensor] = []
    handle = model.get_submodule(layer).register_forward_pre_hook(lambda module, given: kept.append(given[0]))
    with torch.no_grad():
        model(torch.randn(64, 3, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
    handle.remove()
    flat = kept[0].transpose(0, 1).flatten(1)
    return torch.where(flat.std(dim=1) < 1e-12, flat[:, 0], float("nan"))


def assert_agree(found: Tensor, expected: Tensor) -> None:
    assert torch.equal(found.isnan(), expected.isnan()), (found, expected)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12, equal_nan=True)


def test_rows_of_zeros_and_norms_of_zero() -> None:
    model = randomize(Chain(), seed=1)
    assert isinstance(model, Chain)
    draft = Draft(model)
    draft.add("a", draft.silent("a"))
    draft.add("a", {**draft.silent("a"), "na.bias": 0.7})
    draft.add("a", {**draft.silent("a"), "na.bias": -0.7})
    draft.add("a", {"na.weight": 0.0, "na.bias": 0.4})
    draft.add("a", {"na.weight": 0.0, "na.bias": 0.0})
    draft.add("a", {"a.weight": 0.0})
    wide = Chain.of(draft.state)
    found = values_at(wide, "a", "b")
    assert_agree(found, seen(wide, "b"))
    assert int((~found.isnan()).sum()) == 6
    assert int((found == 0).sum()) >= 3


def test_gates() -> None:
    """Zero behind any gate is zero; a constant behind a gate that moves is not constant."""
    model = randomize(Gated(), seed=1)
    assert isinstance(model, Gated)
    draft = Draft(model)
    draft.add("a", {name: 0.0 for name in draft.silent("a") if not name.startswith("s2")})
    wide = Gated.of(draft.state)
    found = values_at(wide, "a", "b")
    assert float(found[-1]) == 0
    assert bool(found[:-1].isnan().all())
    assert_agree(found, seen(wide, "b"))


def test_numbers_that_float32_can_hardly_hold_are_zero() -> None:
    """Norms of units that died in training hold numbers such as 1e-44, which cancel to no precision at all."""
    model = randomize(Chain(), seed=1)
    assert isinstance(model, Chain)
    draft = Draft(model)
    draft.add("a", {**draft.silent("a"), "na.bias": 3e-44})
    assert float(values_at(Chain.of(draft.state), "a", "b")[-1]) == 0


def test_what_half_precision_makes_of_small_numbers_is_zero() -> None:
    """A shift that undoes a mean of 2e-7 is off by a fifth once both are float16, and by 1e-8 in all."""
    model = randomize(Chain(), seed=1)
    assert isinstance(model, Chain)
    draft = Draft(model)
    mean = torch.tensor(2e-7, dtype=torch.float64)
    factor = 0.3 / (torch.tensor(1.3, dtype=torch.float64) + 1e-5).sqrt()
    rounded = {"na.running_mean": mean.half().item(), "na.bias": (factor * mean).half().item()}
    draft.add("a", {**draft.silent("a"), "na.weight": 0.3, "na.running_var": 1.3, **rounded})
    wide = Chain.of(draft.state)
    assert float(values_at(wide, "a", "b")[-1]) > 0
    assert float(values_at(wide, "a", "b", smallest=6e-8)[-1]) == 0


def test_activations_beside_each_other() -> None:
    """Alike ones are asked together: what each layer reads is what its own activation makes."""
    between = {
        "relu": nn.ReLU(), "again": nn.ReLU(inplace=False), "leaky": nn.LeakyReLU(0.1), "leakier": nn.LeakyReLU(0.3),
        "bounded": nn.Hardtanh(-0.2, 0.2), "wide": nn.Hardtanh(), "smooth": nn.Softplus(),
    }  # fmt: skip
    readers = {f"read_{name}": nn.Conv2d(4, 2, 1) for name in between}

    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.a(x)
        seen = [getattr(net, f"read_{name}")(getattr(net, name)(x)) for name in between]
        seen += [net.read_f(F.leaky_relu(x, 0.1)), net.read_g(F.leaky_relu(x, negative_slope=0.2))]
        total: Tensor = torch.stack(seen).sum(0)
        return total

    more = {"read_f": nn.Conv2d(4, 2, 1), "read_g": nn.Conv2d(4, 2, 1)}
    model = randomize(Net(forward, a=nn.Conv2d(3, 4, 3), **between, **readers, **more), seed=2)
    state = model.state_dict()
    state["a.weight"][1:] = 0
    state["a.bias"].copy_(torch.tensor([0.4, -0.7, 0.6, 0.0]))
    for layer in (*readers, *more):
        found = values_at(model, "a", layer)
        assert_agree(found, seen(model, layer))
        assert int((~found.isnan()).sum()) == 3
