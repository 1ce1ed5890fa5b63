"""The attacks that answer recovery: each keeps the function as far as it says, wherever it can be done."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from canon import attacks, zoo
from canon.attacks import AttackLog, AttackResult, attack, replay
from canon.errors import AttackError
from canon.graph import trace
from canon_benchmarks.subjects import subject
from tests.architectures import JOINED
from tests.networks import Case
from tests.pinned import CASES
from tests.preservation import assert_sizes_agree, outputs, randomize, relative_error
from tests.strategies import networks

TOLERANCE = {
    "dead_range": 1e-9,
    "dead_data": 1e-9,  # on the inputs that were tried
    "odd_group": 1e-9,
    "odd_replace": 1e-9,
    "entangled": 1e-9,
    "tiny_column": 1e-9,
    "noisy_clique": 1e-3,
}
"""How far outputs may move in float64, relative to the largest."""

EVERYWHERE = ("tiny_column", "noisy_clique")
"""What can be done in every free space."""


def check(model: nn.Module, example: Any, op: str, **options: Any) -> AttackResult | None:
    """The attacked model computes the same, as far as the operation says; None where no space allows it."""
    try:
        result = attack(model, example, [op], **options)
    except AttackError as refusal:
        if op in EVERYWHERE or "no space of the model allows" not in str(refusal):
            raise
        return None
    assert_sizes_agree(result.model)
    error = relative_error(outputs(result.model, example), outputs(model, example))
    assert error <= TOLERANCE[op], f"{op} changes the outputs by {error:.1e}"
    assert (result.log.change is None) == (result.log.preserves == "function")
    return result


def done_in(cases: list[Case], op: str) -> int:
    """In how many networks an operation could be done; it kept the function in all of them."""
    options: dict[str, Any] = {"ratio": 0.6, "expand_kernels": True, "seed": 3}
    return sum(check(randomize(case.build()), case.example(), op, **options) is not None for case in cases)


FREE = [case for case in CASES if case.free]


@pytest.mark.parametrize("op", TOLERANCE)
def test_some_small_networks(op: str) -> None:
    some = FREE[list(TOLERANCE).index(op) :: len(TOLERANCE)]
    assert done_in(some, op) >= len(some) // (20 if op == "dead_range" else 2)


@pytest.mark.slow
@pytest.mark.parametrize("op", TOLERANCE)
def test_all_small_networks(op: str) -> None:
    # Most have few layers, and the range of an image is not known.
    assert done_in(FREE, op) >= len(FREE) / (8 if op == "dead_range" else 1.2)


@pytest.mark.parametrize("op", TOLERANCE)
def test_joined_networks_without_camouflage(op: str) -> None:
    for case in JOINED:
        if case.free:
            check(randomize(case.build()), case.example(), op, ratio=0.5, permute=False, scale=False, chain=False)


@given(network=networks(), seed=st.integers(0, 2**32), op=st.sampled_from(sorted(TOLERANCE)))
def test_random_networks(network: nn.Module, seed: int, op: str) -> None:
    model = randomize(network)
    example = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = outputs(model, example)
    if trace(model, example).free and float(expected.abs().max()) > 1e-6 and bool(expected.isfinite().all()):
        check(model, example, op, ratio=0.5, seed=seed)


@pytest.mark.parametrize("first", ["nso_split", "nso_clique", "odd_replace"])
@pytest.mark.parametrize("second", ["nso_split", "odd_group", "odd_replace", "dead_range", "tiny_column"])
def test_operations_build_on_each_other(first: str, second: str) -> None:
    for case in JOINED[:8]:
        if not case.free:
            continue
        model, example = randomize(case.build()), case.example()
        result = attack(model, example, [first, second, "nso_zero"], ratio=0.5)
        assert relative_error(outputs(result.model, example), outputs(model, example)) <= 1e-9, case.name


@pytest.mark.parametrize("op", TOLERANCE)
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_float32(name: str, op: str) -> None:
    model, example = subject(name), zoo.example_input(name)
    result = attack(model, example, [op])
    error = relative_error(outputs(result.model, example), outputs(model, example))
    assert error <= (1e-3 if op == "noisy_clique" else 1e-5)


def network() -> nn.Module:
    return randomize(
        nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
            nn.Conv2d(12, 10, 3, padding=1, bias=False), nn.BatchNorm2d(10), nn.Hardswish(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(40, 8), nn.GELU(), nn.Linear(8, 3),
        )
    )  # fmt: skip


EXAMPLE = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def values(result: AttackResult, layer: int, given: Tensor) -> Tensor:
    """What the attacked network holds behind a layer."""
    model: Any = result.model
    with torch.no_grad():
        found: Tensor = model[: layer + 1](given)
    return found


def places(result: AttackResult, space: int, kind: str) -> list[int]:
    return [k for k, found in enumerate(result.log.spaces[space].kinds) if found == kind]


def test_dead_by_range_whatever_comes_in_and_read_with_ordinary_weights() -> None:
    result = attack(network(), EXAMPLE, ["dead_range"], ratio=0.5)
    first, second, third = result.log.spaces
    assert first.skipped == {"dead_range": "the range of its inputs is not known"}
    assert first.sequence == ()
    assert "dead_range" not in first.kinds
    assert third.skipped, "Hardswish gives negative values as well"
    dead = places(result, 1, "dead_range")
    assert len(dead) == second.injected == 5
    wild = 100 * torch.randn(64, 3, 6, 6, dtype=torch.float64)
    assert bool((values(result, 5, wild)[:, dead] == 0).all())
    assert float(values(result, 4, wild)[:, dead].max()) < -3, "the norm holds it below the floor"
    model: Any = result.model
    rows = model[3].weight[dead]
    assert bool((rows <= 0).all())
    assert bool((rows != 0).any())
    readers = model[8].weight.detach()[places(result, 2, "original")].view(8, -1, 4)
    assert float(readers[:, dead].std()) > 0.1 * float(readers.std())


def test_dead_on_data_and_not_elsewhere() -> None:
    result = attack(network(), EXAMPLE, ["dead_data"], ratio=0.5, probes=EXAMPLE)
    dead = places(result, 0, "dead_data")
    assert bool((values(result, 2, EXAMPLE)[:, dead] == 0).all())
    wild = 100 * torch.randn(64, 3, 6, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert bool((values(result, 2, wild)[:, dead] > 0).any())
    assert relative_error(outputs(result.model, wild), outputs(network(), wild)) > 1e-6
    assert result.log.preserves == "on data"
    assert result.log.change is not None
    assert result.log.change < 1e-12
    again = replay(network(), EXAMPLE, AttackLog.from_json(result.log.to_json()), probes=EXAMPLE)
    assert all(torch.equal(a, b) for a, b in zip(result.model.parameters(), again.model.parameters(), strict=True))


def proportional(rows: Tensor) -> int:
    """Pairs of rows that are positive multiples of each other."""
    unit = nn.functional.normalize(rows.flatten(1), dim=1)
    return int(((unit @ unit.T).triu(1) > 1 - 1e-9).sum())


@pytest.mark.parametrize("op", ["odd_group", "entangled", "odd_replace"])
def test_no_two_rows_of_a_group_are_proportional(op: str) -> None:
    result = attack(network(), EXAMPLE, [op], ratio=0.5)
    model: Any = result.model
    for space, layer in ((0, 0), (1, 3), (2, 8)):
        assert result.log.spaces[space].injected > 0
        assert proportional(model[layer].weight.detach()) == 0


def test_replaced_channels_no_longer_stand_there() -> None:
    result = attack(network(), EXAMPLE, ["odd_replace"], ratio=0.5)
    original: Any = network()
    log, model = result.log.spaces[0], result.model
    replaced = {log.origins[k] for k in places(result, 0, "part")}
    assert len(replaced) == 2
    assert log.kinds.count("part") == 5 * len(replaced)
    layers: Any = model
    rows = nn.functional.normalize(layers[0].weight.detach().flatten(1), dim=1)
    for origin in range(12):
        row = nn.functional.normalize(original[0].weight[origin].detach().flatten(), dim=0)
        stands = bool((rows @ row > 1 - 1e-9).any())
        assert stands == (origin not in replaced)


def test_tiny_columns_are_tiny_and_not_zero() -> None:
    result = attack(network(), EXAMPLE, ["tiny_column"], ratio=0.5, scale=False)
    model: Any = result.model
    live = places(result, 1, "original")
    columns = model[3].weight.detach()[live][:, places(result, 0, "tiny")].abs()
    assert float(columns.min()) > 0
    assert 1e-40 < float(columns.median()) < float(columns.max()) < 1e-10


def test_noisy_cliques_do_not_quite_cancel() -> None:
    result = attack(network(), EXAMPLE, ["noisy_clique"], ratio=0.5, scale=False)
    model: Any = result.model
    columns = model[3].weight.detach()[places(result, 1, "original")][:, places(result, 0, "noisy_clique")]
    sums = columns.sum(1).abs()
    assert 1e-8 < float(sums.median()) < float(sums.max()) < 1e-3
    assert result.log.preserves == "nearly"
    assert result.log.change is not None
    assert 0 < result.log.change < 1e-3


@pytest.mark.parametrize("op", TOLERANCE)
def test_logs_replay(op: str) -> None:
    done = attack(network(), EXAMPLE, [op], seed=4)
    read = AttackLog.from_json(done.log.to_json())
    assert read == done.log
    again = replay(network(), EXAMPLE, read)
    other = attack(network(), EXAMPLE, [op], seed=5)
    pairs = list(zip(done.model.parameters(), again.model.parameters(), other.model.parameters(), strict=True))
    assert all(torch.equal(first, second) for first, second, _ in pairs)
    assert not all(torch.equal(first, third) for first, _, third in pairs)


def test_what_no_space_allows_is_refused_with_the_reason() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).eval()
    for op in ("dead_range", "dead_data", "odd_group", "odd_replace", "entangled"):
        with pytest.raises(AttackError, match=rf"no space of the model allows.*{op}: "):
            attack(model, torch.zeros(2, 4), [op])
    skipped = attack(model, torch.zeros(2, 4), ["nso_zero", "odd_group"]).log.spaces[0]
    assert skipped.sequence == ("nso_zero",)
    assert skipped.skipped == {"odd_group": "a function whose odd part is not linear"}


def test_every_operation_is_held_to_a_tolerance() -> None:
    assert set(attacks.names()) >= set(TOLERANCE) | {"nso_zero", "nso_clique", "nso_split"}


@pytest.mark.parametrize("case", [case for case in JOINED if case.free][:3], ids=lambda case: case.name)
def test_the_check_sees_a_broken_group(case: Case) -> None:
    model, example = randomize(case.build()), case.example()
    result = attack(model, example, ["odd_group"], ratio=0.5)
    expected = outputs(model, example)
    broken = 0
    for name, parameter in result.model.named_parameters():
        if parameter.ndim > 1:
            with torch.no_grad():
                kept = parameter.clone()
                parameter[:, -1] *= 1.1
                broken += relative_error(outputs(result.model, example), expected) > TOLERANCE["odd_group"]
                parameter.copy_(kept)
            assert name
    assert broken > 0
