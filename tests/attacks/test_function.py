"""Every attack keeps the function of every network that has something free."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from canon import zoo
from canon.attacks import attack
from canon.errors import AttackError
from canon.graph import trace
from canon_benchmarks.subjects import subject
from tests.architectures import JOINED
from tests.networks import Case
from tests.pinned import CASES
from tests.preservation import assert_same_function, assert_sizes_agree, outputs, randomize, relative_error
from tests.strategies import networks

VARIANTS = ("nso_zero", "nso_clique", "nso_split", "mix-opseq", "mix-opseq-per-merge-group")


def check(model: nn.Module, example: Any, ops: Any, **options: Any) -> None:
    """The attacked model computes the same, is an ordinary model, and has the same free spaces, only wider."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = attack(model, example, ops, **options)
    assert_sizes_agree(result.model)
    assert_same_function(result.model, outputs(model, example), example, f"the attack {ops}")
    assert type(result.model) is type(model)
    widths = {space.name: space.width for space in trace(result.model, example).spaces}
    assert all(widths[space.name] == space.after for space in result.log.spaces)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), f"'{name}' of the given model was changed"


@pytest.mark.parametrize("case", [case for case in CASES if case.free], ids=lambda case: case.name)
def test_small_networks_with_everything_on(case: Case) -> None:
    check(randomize(case.build()), case.example(), "mix-opseq-per-merge-group", ratio=0.6, expand_kernels=True, seed=3)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", [case for case in JOINED if case.free], ids=lambda case: case.name)
def test_joined_networks_under_every_variant(case: Case, variant: str) -> None:
    check(randomize(case.build()), case.example(), variant, ratio=0.5)


@pytest.mark.parametrize(
    "options",
    [
        {"zero_form": "in"},
        {"zero_form": "out"},
        {"permute": False, "scale": False},
        {"chain": False},
        {"split_shares": "random", "split_position": 0.3},
        {"scale_range": (0.01, 100.0)},
        {"ratio": 1.0, "sequence_length": 4},
    ],
    ids=str,
)
def test_options(options: dict[str, Any]) -> None:
    for case in JOINED:
        if case.free:
            ops = ["nso_split", "nso_zero", "nso_clique"] if "sequence_length" not in options else "mix-opseq"
            check(randomize(case.build()), case.example(), ops, **options)


@given(network=networks(), seed=st.integers(0, 2**32), variant=st.sampled_from(VARIANTS), kernels=st.booleans())
def test_random_networks(network: nn.Module, seed: int, variant: str, kernels: bool) -> None:
    model = randomize(network)
    example = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if not trace(model, example).free:
        with pytest.raises(AttackError, match="nothing that may change"):
            attack(model, example, variant)
        return
    expected = outputs(model, example)
    if not float(expected.abs().max()) > 1e-6 or not bool(expected.isfinite().all()):
        return  # nothing to compare with
    check(model, example, variant, ratio=0.5, seed=seed, expand_kernels=kernels)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_float32(name: str, variant: str) -> None:
    model, example = subject(name), zoo.example_input(name)
    attacked = attack(model, example, variant, ratio=0.5)
    assert relative_error(outputs(attacked.model, example), outputs(model, example)) <= 1e-5


def test_dense_network() -> None:
    model, example = subject("densenet121").double(), zoo.example_input("densenet121").double()
    attacked = attack(model, example, "mix-opseq-per-merge-group")
    assert relative_error(outputs(attacked.model, example), outputs(model, example)) <= 1e-9


def test_null_channels_do_not_pile_up_rounding_errors() -> None:
    """Chained through 40 norms, they disturb the function no more than copies do, which are as many."""
    torch.manual_seed(0)
    layers = [
        nn.Sequential(nn.Conv2d(8 if index else 3, 8, 1, bias=False), nn.BatchNorm2d(8, momentum=None), nn.ReLU())
        for index in range(40)
    ]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 5))
    with torch.no_grad():
        for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
            norm.weight.normal_(1, 0.3)
            norm.bias.normal_(0, 0.1)
        model(torch.randn(64, 3, 2, 2))  # the norms see what a trained network's have seen
    model.eval()
    example = torch.randn(8, 3, 2, 2)
    expected = outputs(model, example)
    errors = {
        op: relative_error(outputs(attack(model, example, [op] * 3, ratio=1.0).model, example), expected)
        for op in ("nso_split", "nso_zero")
    }
    assert errors["nso_zero"] <= 30 * errors["nso_split"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_half_and_close(dtype: torch.dtype) -> None:
    case = next(case for case in JOINED if case.free)
    model = randomize(case.build()).to(dtype)
    example = case.example().to(dtype)
    attacked = attack(model, example, ["nso_zero", "nso_clique"]).model
    assert {p.dtype for p in attacked.parameters()} == {dtype}
    wide, original = attacked.double(), model.double()
    error = relative_error(outputs(wide, example.double()), outputs(original, example.double()))
    assert error < 40 * torch.finfo(dtype).eps


@pytest.mark.parametrize("parameter", ["clique column", "zero-in bias", "share"])
def test_the_check_sees_a_wrong_number(parameter: str) -> None:
    model = randomize(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))
    example = torch.randn(5, 4, dtype=torch.float64)
    result = attack(model, example, ["nso_zero", "nso_clique", "nso_split"], ratio=0.5, zero_form="in")
    kinds = result.log.spaces[0].kinds
    layers: Any = result.model
    first, last = layers[0], layers[2]
    with torch.no_grad():
        if parameter == "clique column":
            last.weight[0, kinds.index("clique")] += 0.1
            first.bias += 0.5  # so that the clique is awake
        elif parameter == "zero-in bias":
            first.bias[kinds.index("zero_in")] += 0.1
        else:
            last.weight[0, kinds.index("copy" if "copy" in kinds else "original")] += 0.1
            first.bias += 0.5
    with pytest.raises(AssertionError, match="changes the outputs"):
        assert_same_function(result.model, outputs(model, example), example, "a broken attack")


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_kernels_grow_in_every_dimension(dimensions: int) -> None:
    conv: Any = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dimensions - 1]
    model = randomize(nn.Sequential(conv(3, 6, 3, padding=1), nn.ReLU(), conv(6, 5, 1), nn.ReLU(), nn.Flatten()))
    example = torch.randn(2, 3, *[4] * dimensions, dtype=torch.float64)
    for ops in (["nso_split"], ["nso_zero", "nso_clique"]):
        grown: Any = attack(model, example, ops, ratio=0.5, expand_kernels=True).model
        assert grown[0].kernel_size == (5,) * dimensions
        assert grown[2].kernel_size == (3,) * dimensions
        check(model, example, ops, ratio=0.5, expand_kernels=True)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(
    ("padding", "mode"), [("same", "circular"), ("same", "reflect"), ("valid", "zeros"), (1, "zeros")]
)
def test_grown_kernels_keep_the_function(padding: Any, mode: Any) -> None:
    """Also of even kernels, which stand off the middle."""
    for seed, size in enumerate([2, 4, 3]):
        conv: Any = nn.Conv2d(6, 5, size, padding=padding, padding_mode=mode)
        model = randomize(nn.Sequential(nn.Conv2d(3, 6, 1), nn.ReLU(), conv, nn.ReLU(), nn.Flatten()))
        check(model, torch.randn(2, 3, 9, 8, dtype=torch.float64), ["grown_kernel"], ratio=1.0, seed=seed)
