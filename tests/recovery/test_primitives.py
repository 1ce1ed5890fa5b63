"""What attacks prepare before channels are injected: each keeps the function, comes back, and needs what undoes it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

from canon.attacks import attack
from canon.errors import AttackError
from canon.recovery import idle, recover
from canon.recovery import reduce as reduction
from canon.recovery.passes import PASSES
from canon.rewrite.kernels import Kernel
from tests.networks import Net
from tests.preservation import outputs, relative_error
from tests.recovery.disguises import Plain, network


def shapes(model: nn.Module) -> list[tuple[int, ...]]:
    return sorted(tuple(tensor.shape) for tensor in model.state_dict().values())


def narrow(plain: Plain) -> nn.Sequential:
    """With a linear bottleneck behind the first layer."""
    torch.manual_seed(int(plain.model[0].weight[0, 0, 0, 0] * 1e6) % 1000)
    width = plain.model[0].out_channels
    pair = (nn.Conv2d(width, 5, 1, bias=False), nn.BatchNorm2d(5), nn.Conv2d(5, width, 1), nn.ReLU())
    return nn.Sequential(*plain.model[:2], *(layer.double() for layer in pair), *plain.model[2:]).eval()


TAKEN_OUT: dict[str, Any] = {
    "idle_layer": "straighten", "wide_basis": "basis", "endless": "endless",
    "grown_kernel": (Kernel, "removable", lambda kernel, used: ()),
    "constant": (reduction, "foldable", lambda *given: {}),
    "idle_branch": (idle, "_unused", lambda *given: set()),
}  # fmt: skip
"""By primitive: the pass that undoes it, or the function that does."""


@pytest.mark.parametrize("op", TAKEN_OUT)
def test_twenty_networks(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        plain = network(seed)
        clean = narrow(plain) if op == "wide_basis" else plain.model
        expected = outputs(clean, plain.example)
        hidden = attack(clean, plain.example, [op], ratio=0.4, seed=seed).model
        assert shapes(hidden) != shapes(clean)
        assert relative_error(outputs(hidden, plain.example), expected) < 1e-10
        lean = recover(hidden, plain.example).lean()
        assert shapes(lean) == shapes(clean), f"seed {seed}"
        assert relative_error(outputs(lean, plain.example), expected) < 1e-9
    undone_by = TAKEN_OUT[op]
    passes = PASSES
    if isinstance(undone_by, str):
        passes = tuple(known for known in PASSES if known.__name__ != undone_by)
    else:
        monkeypatch.setattr(*undone_by)
    if op == "endless":
        with pytest.raises(Exception, match="infinity"):
            recover(hidden, plain.example, passes=passes)
    else:
        assert shapes(recover(hidden, plain.example, passes=passes).lean()) != shapes(clean)


@pytest.mark.parametrize("op", ["idle_layer", "idle_branch", "grown_kernel", "constant"])
def test_together_with_channels(op: str) -> None:
    for seed in range(5):
        plain = network(seed)
        hidden = attack(plain.model, plain.example, [op, "nso_clique"], ratio=0.4, seed=seed).model
        lean = recover(hidden, plain.example).lean()
        assert shapes(lean) == shapes(plain.model), f"seed {seed}"


def test_a_model_without_a_linear_space() -> None:
    plain = network(0)
    with pytest.raises(AttackError, match="no place for 'wide_basis'"):
        attack(plain.model, plain.example, ["wide_basis"])


@pytest.mark.parametrize("kind", [(nn.Conv1d, (2, 4, 20)), (nn.Conv3d, (2, 4, 6, 6, 6))], ids=["1d", "3d"])
@pytest.mark.parametrize("op", ["mix-opseq", "nso_clique"])
def test_convolutions_along_one_axis_and_three(kind: tuple[Any, tuple[int, ...]], op: str) -> None:
    convolution, size = kind
    torch.manual_seed(0)
    layers = (convolution(4, 12, 3, padding=1), nn.ReLU(), convolution(12, 10, 3, stride=2), nn.ReLU(), nn.Flatten())
    clean = nn.Sequential(*layers, nn.LazyLinear(5))
    clean(torch.zeros(size))
    clean = clean.double().eval()
    given = torch.randn(size, dtype=torch.float64)
    suspect = attack(clean, given, op, ratio=0.3, seed=1).model
    assert shapes(suspect) != shapes(clean)
    recovered = recover(suspect, given).model
    assert shapes(recovered) == shapes(clean)
    assert relative_error(outputs(recovered, given), outputs(clean, given)) < 1e-9


def joined(seed: int, pool: bool) -> tuple[nn.Module, torch.Tensor]:
    """Two layers side by side, read by layers with norms of their own; or one of them behind a pool that pads."""
    generator = torch.Generator().manual_seed(seed)

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        a = net.a(x)
        both = torch.cat([a, net.b(net.first(a).relu())], 1)
        if pool:
            both = net.second(both).relu()
            read = net.c(both) + net.d(nn.functional.avg_pool2d(both, 3, 1, 1))
        else:
            read = net.c(net.second(both).relu()) + net.d(net.third(both).relu())
        return net.last(read.relu().mean((2, 3)))  # type: ignore[no-any-return]

    net = Net(forward, a=nn.Conv2d(3, 8, 3, padding=1), first=nn.BatchNorm2d(8), b=nn.Conv2d(8, 10, 3, padding=1),
              second=nn.BatchNorm2d(18), third=nn.BatchNorm2d(18), c=nn.Conv2d(18, 6, 1), d=nn.Conv2d(18, 6, 1),
              last=nn.Linear(6, 4)).double().eval()  # fmt: skip
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point():
            drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            tensor.copy_(0.5 + drawn.abs() if "running_var" in name else drawn)
    return net, torch.randn(2, 3, 9, 9, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("op", "pool"), [("odd_group", False), ("odd_replace", False), ("entangled", False),
                                          ("odd_group", True), ("constant", True)])  # fmt: skip
def test_readers_that_see_a_space_each_in_its_own_way(op: str, pool: bool) -> None:
    """Dense blocks have a norm and an activation for every reader; a pool that pads makes no constant of a constant."""
    for seed in range(5):
        clean, example = joined(seed, pool)
        expected = outputs(clean, example)
        hidden = attack(clean, example, [op], ratio=0.4, seed=seed).model
        assert relative_error(outputs(hidden, example), expected) < 1e-10
        lean = recover(hidden, example).lean()
        assert shapes(lean) == shapes(clean), f"seed {seed}"
        assert relative_error(outputs(lean, example), expected) < 1e-8


@pytest.mark.parametrize("ops", [("odd_group", "nso_split"), ("nso_split", "odd_group"), ("odd_group", "odd_group")])
def test_groups_that_read_groups(ops: tuple[str, ...]) -> None:
    """Every row reads the groups before it with numbers of its own: copies are copies but for these."""
    for seed in range(5):
        torch.manual_seed(seed)
        layers = (nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 20), nn.GELU(), nn.Linear(20, 8), nn.ReLU())
        clean = nn.Sequential(*layers, nn.Linear(8, 4)).double().eval()
        given = torch.randn(4, 12, dtype=torch.float64)
        hidden = attack(clean, given, ops, ratio=0.25, seed=seed).model
        recovered = recover(hidden, given).model
        assert shapes(recovered) == shapes(clean), f"seed {seed}"
        assert relative_error(outputs(recovered, given), outputs(clean, given)) < 1e-9


@pytest.mark.parametrize("ops", [("odd_group",), ("odd_replace", "nso_split"), ("entangled",)])
def test_groups_in_a_stream(ops: tuple[str, ...]) -> None:
    """An activation, and what branches add to it: channels are one function of a line and another line."""
    for seed in range(5):
        torch.manual_seed(seed)

        def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
            stream = nn.functional.hardswish(net.stem(x))
            stream = stream + net.norm(net.down(net.up(stream).relu()))
            return net.head(nn.functional.silu(net.last(stream)).mean((2, 3)))  # type: ignore[no-any-return]

        layers = {"stem": nn.Conv2d(3, 8, 3, padding=1), "last": nn.Conv2d(8, 10, 3), "head": nn.Linear(10, 4)}
        branch = {"up": nn.Conv2d(8, 12, 1), "down": nn.Conv2d(12, 8, 1), "norm": nn.BatchNorm2d(8)}
        clean: Any = Net(forward, **layers, **branch).double().eval()
        clean.norm.running_mean.copy_(torch.randn(8))
        given = torch.randn(2, 3, 8, 8, dtype=torch.float64)
        hidden = attack(clean, given, ops, ratio=0.25, seed=seed).model
        recovered = recover(hidden, given).model
        assert shapes(recovered) == shapes(clean), f"seed {seed}"
        assert relative_error(outputs(recovered, given), outputs(clean, given)) < 1e-9


@pytest.mark.parametrize("op", ["odd_group", "odd_replace", "entangled"])
def test_groups_with_slopes_of_their_own(op: str) -> None:
    """A PReLU is a line and a magnitude, each channel with a slope of its own."""
    for seed in range(5):
        torch.manual_seed(seed)
        layers = (nn.Conv2d(3, 10, 3), nn.BatchNorm2d(10), nn.PReLU(10), nn.Conv2d(10, 8, 3), nn.PReLU(8), nn.Flatten())
        clean: Any = nn.Sequential(*layers, nn.Linear(8 * 16, 4)).double().eval()
        for place in (2, 4):
            clean[place].weight.data.uniform_(0.1, 0.6)
        given = torch.randn(2, 3, 8, 8, dtype=torch.float64)
        hidden = attack(clean, given, [op], ratio=0.25, seed=seed).model
        recovered = recover(hidden, given).model
        assert shapes(recovered) == shapes(clean), f"seed {seed}"
        assert relative_error(outputs(recovered, given), outputs(clean, given)) < 1e-9


def test_what_a_merge_empties(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of which all that it reads cancels is seen to be nothing once the columns are added up."""
    plain = network(0)
    hidden = plain.model
    for seed in range(2):
        hidden = attack(hidden, plain.example, ["mix-opseq"], ratio=0.5, seed=seed).model
    assert shapes(recover(hidden, plain.example).model) == shapes(plain.model)
    monkeypatch.setattr(sys.modules["canon.recovery.passes.compact"], "_emptied", lambda *given: False)
    assert shapes(recover(hidden, plain.example).model) != shapes(plain.model)
