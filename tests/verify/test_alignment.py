"""Alignment brings every layout back, from the reference and from its key, and copies nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from canon.errors import UnsupportedModelError, VerificationError
from canon.graph import plain, trace
from canon.verify import Matching, align, register
from canon.verify.matching import MATCHINGS
from tests.networks import Case, Net, conv, head
from tests.pinned import CASES
from tests.preservation import outputs, randomize, relative_error
from tests.verify.small import disguise, example, largest_difference, tiny


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_small_network_comes_back(case: Case) -> None:
    reference, inputs = plain(randomize(case.build())), case.example()
    suspect = disguise(reference, inputs)
    expected = outputs(reference, inputs)
    by_reference = align(suspect, reference, inputs)
    by_key = align(suspect, register(reference, inputs, numbers=6), inputs)
    assert largest_difference(by_reference.model, reference) < 1e-9
    assert largest_difference(by_key.model, reference) < 1e-6
    for found in (by_reference, by_key):
        assert found.established
        assert relative_error(outputs(found.model, inputs), expected) < 1e-6


@pytest.mark.parametrize("matching", MATCHINGS)
def test_every_matching_brings_it_back(matching: Matching) -> None:
    reference = tiny()
    found = align(disguise(reference, example()), reference, example(), matching=matching)
    assert largest_difference(found.model, reference) < 1e-6
    assert found.distinct == 1.0


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float16, 3e-3), (torch.bfloat16, 2e-2)])
def test_half_precision_comes_back(dtype: torch.dtype, limit: float) -> None:
    reference = tiny().to(dtype)
    found = align(disguise(reference, example().to(dtype)), reference, example().to(dtype))
    assert found.established
    assert largest_difference(found.model, reference) < limit
    assert {p.dtype for p in found.model.parameters()} == {dtype}


def test_a_model_in_place_stays_as_it_is() -> None:
    reference = tiny()
    for anchor in (reference, register(reference, example())):
        found = align(reference, anchor, example())
        for name, tensor in found.model.state_dict().items():
            assert torch.equal(tensor, reference.state_dict()[name]), name


def test_nothing_given_is_changed() -> None:
    reference, suspect = tiny(), disguise(tiny(), example())
    before = [copy.deepcopy(model.state_dict()) for model in (reference, suspect)]
    found = align(suspect, reference, example())
    with torch.no_grad():
        for parameter in found.model.parameters():
            parameter.zero_()
    for model, old in zip((reference, suspect), before, strict=True):
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, old[name]), name


# -- forgery ---------------------------------------------------------------------------------------------------------


def marked(model: nn.Module, size: float = 1e-4) -> nn.Module:
    """The model with a small mark of its own in every number."""
    result = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(99)
    with torch.no_grad():
        for tensor in [*result.parameters(), *(b for b in result.buffers() if b.is_floating_point())]:
            tensor.mul_(1 + size * torch.randn(tensor.shape, generator=generator))
    return result


def test_marks_in_the_reference_do_not_reach_the_aligned_model() -> None:
    """Order alone: bit for bit what it is without the marks."""
    reference = tiny()
    suspect = disguise(reference, example(), scale=False)
    plain = align(suspect, reference, example(), rescale=False).model.state_dict()
    with_marks = align(suspect, marked(reference), example(), rescale=False).model.state_dict()
    for name, tensor in plain.items():
        assert torch.equal(tensor, with_marks[name]), name
        assert torch.equal(tensor, reference.state_dict()[name]), name


@pytest.mark.parametrize("by_key", [False, True])
def test_the_aligned_model_is_the_suspect_times_one_factor_per_channel(by_key: bool) -> None:
    """Order and scale: with marks or without, each weight differs from the suspect's by a row factor and a column
    factor only, so that the hundreds of marks in a row and in a column have nowhere to go."""
    reference = tiny().double()
    inputs = example().double()
    suspect = disguise(reference, inputs)
    owner = marked(reference)
    found = align(suspect, register(owner, inputs) if by_key else owner, inputs)
    order = {space: torch.argsort(torch.argsort(place)) for space, place in found.orders.items()}
    for layer, rows, columns in (("conv1", "conv1", None), ("conv2", "conv1", "conv1"), ("conv3", "conv3", "conv1")):
        ours = suspect.get_parameter(f"{layer}.weight")[order[rows]]
        if columns is not None:
            ours = ours[:, order[columns]]
        ratio = found.model.get_parameter(f"{layer}.weight") / ours
        # A matrix of ratios r_i · c_j: every row is the first one up to a factor.
        row, first = ratio.flatten(1), ratio[:, :1, :1, :1]
        column = ratio[:1] / ratio[:1, :1, :1, :1]
        assert torch.allclose(row, (first * column).flatten(1), rtol=1e-9), layer
    assert largest_difference(found.model, owner) > 1e-5, "the marks were copied"
    assert largest_difference(found.model, owner) < 1e-3


# -- what cannot be told apart ---------------------------------------------------------------------------------------


def tied_residual() -> nn.Module:
    """A residual space whose first producer gives several channels the same row; only the loop tells them apart."""
    net: Any = Net(
        lambda net, x: head(net, _twice(net, torch.relu(net.a(x)))),
        a=conv(3, 6), b=conv(6, 6), c=conv(6, 6), fc=nn.Linear(6, 4),
    )  # fmt: skip
    net = randomize(net)
    with torch.no_grad():
        net.a.weight[1:4] = net.a.weight[:1]
        net.a.bias[1:4] = net.a.bias[:1]
    return net  # type: ignore[no-any-return]


def _twice(net: Any, x: Tensor) -> Tensor:
    x = torch.relu(x + net.b(x))
    return torch.relu(x + net.c(x))


def test_channels_that_tie_at_first_are_told_apart_by_what_follows() -> None:
    reference, inputs = tied_residual(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    for anchor in (reference, register(reference, inputs)):
        for seed in range(4):
            found = align(disguise(reference, inputs, seed=seed), anchor, inputs)
            assert largest_difference(found.model, reference) < 1e-6
            assert all(space.ambiguous == 0 for space in found.spaces)


def test_channels_that_are_equal_throughout_are_reported() -> None:
    reference = tiny().double()
    inputs = example().double()
    with torch.no_grad():
        for name, tensor in reference.state_dict().items():
            if "3" in name and tensor.ndim:
                tensor[5] = tensor[2]
    found = align(disguise(reference, inputs), reference, inputs)
    assert {space.name: space.ambiguous for space in found.spaces if space.ambiguous} == {"conv3": 2}
    assert relative_error(outputs(found.model, inputs), outputs(reference, inputs)) < 1e-9


# -- errors ----------------------------------------------------------------------------------------------------------


def test_other_widths_are_refused_with_the_layer() -> None:
    with pytest.raises(VerificationError, match=r"4 of 4 layers.*shape 20×3×3×3 instead of 16×3×3×3.*conv1"):
        align(tiny(width=20), tiny(), example())


def test_another_architecture_is_refused_with_the_layer() -> None:
    other = randomize(Net(lambda net, x: head(net, net.conv1(x)), conv1=conv(3, 6), fc=nn.Linear(6, 4))).float()
    with pytest.raises(VerificationError, match=r"different architectures.*lacks the layer 'conv2'"):
        align(other, tiny(), example())
    with pytest.raises(VerificationError, match=r"layer 'conv2' of its own"):
        align(tiny(), other, example())


def test_other_wiring_is_refused() -> None:
    def build(function: Any) -> nn.Module:
        return randomize(Net(function, a=conv(3, 6), b=conv(6, 6), fc=nn.Linear(6, 4)))

    inputs = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    plain = build(lambda net, x: head(net, torch.relu(net.b(torch.relu(net.a(x))))))
    residual = build(lambda net, x: head(net, torch.relu((y := torch.relu(net.a(x))) + net.b(y))))
    with pytest.raises(VerificationError, match="wired in different ways"):
        align(plain, residual, inputs)


def test_numbers_that_are_not_finite_are_refused() -> None:
    broken = tiny()
    with torch.no_grad():
        broken.get_parameter("conv2.weight")[0, 0, 0, 0] = float("nan")
    with pytest.raises(UnsupportedModelError, match=r"conv2\.weight"):
        align(broken, tiny(), example())
    assert trace(broken, example()).spaces, "the trace itself does not mind"
