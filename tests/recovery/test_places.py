"""Redundancy in places that are easily forgotten: behind gates, in groups, beside branches; and what must stay."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from canon.recovery import recover
from canon.recovery.passes import PASSES
from tests.preservation import outputs, relative_error
from tests.recovery.disguises import ACTIVATIONS, Plain, drawn, network, widened

SEEDS = range(3)


class Gate(nn.Module):
    """`out(f(a(x)) · u(x))` over a ReLU."""

    def __init__(self, width: int, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.stem, self.a, self.u, self.out = (
            nn.Linear(7, 9),
            nn.Linear(9, width),
            nn.Linear(9, width),
            nn.Linear(width, 6),
        )
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.stem(x))
        made: Tensor = self.out(self.function(self.a(x)) * self.u(x))
        return torch.tanh(made) @ torch.ones(6, 2, dtype=made.dtype)


def gated(model: Gate, a: Tensor, u: Tensor, columns: Tensor) -> Gate:
    """With more channels, whose rows are given with their biases last."""
    wide = Gate(model.a.out_features + len(a), model.function).double().eval()
    wide.stem, wide.out.bias = model.stem, model.out.bias
    for layer, old, rows in ((wide.a, model.a, a), (wide.u, model.u, u)):
        layer.weight.data = torch.cat([old.weight.data, rows[:, :-1]])
        layer.bias.data = torch.cat([old.bias.data, rows[:, -1]])
    wide.out.weight.data = torch.cat([model.out.weight.data, columns], dim=1)
    return wide


def around(p: Tensor, q: Tensor) -> Tensor:
    """Six filters whose lines cancel, and whose magnitudes do, read with `w, −w, w, −w, −w, w`."""
    return torch.cat([p, -p, q, -q, p + q, -p - q])


def mirrored_under_one_gate(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """`±p, ±q, ±(p + q)`, all times the same line, which one of them reads with another sign."""
    p, q, v = torch.randn(3, 1, 10, generator=generator, dtype=torch.float64)
    sign = torch.tensor([1.0, 1, 1, 1, 1, -2], dtype=torch.float64)
    w = torch.randn(6, 1, generator=generator, dtype=torch.float64)
    return around(p, q), sign[:, None] * v, torch.cat([w, -w, w, -w, -w, w], 1) / sign


def scaled_between_the_factors(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Three times the same, with scales that go from one factor to the other."""
    a, u = torch.randn(2, 1, 10, generator=generator, dtype=torch.float64)
    scale = torch.tensor([[1.0], [0.5], [3.0]], dtype=torch.float64)
    free = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    return (
        a * scale,
        u * torch.tensor([[1.0], [1.0], [-2.0]], dtype=torch.float64),
        ((free - free.mean(1, keepdim=True)) / (scale.T * torch.tensor([1.0, 1.0, -2.0], dtype=torch.float64))),
    )


def depending_lines(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """`v`, `w` and `v + w` behind one gate, read with `c, c, −c`."""
    p, v, w = torch.randn(3, 1, 10, generator=generator, dtype=torch.float64)
    c = torch.randn(6, 1, generator=generator, dtype=torch.float64)
    return p.expand(3, -1), torch.cat([v, w, v + w]), torch.cat([c, c, -c], 1)


@pytest.mark.parametrize(
    ("disguise", "function"),
    [
        (depending_lines, functional.silu), (depending_lines, torch.sigmoid), (depending_lines, functional.gelu),
        (mirrored_under_one_gate, functional.relu), (mirrored_under_one_gate, functional.gelu),
        (mirrored_under_one_gate, functional.silu), (scaled_between_the_factors, functional.relu),
        (scaled_between_the_factors, functional.leaky_relu),
    ],
)  # fmt: skip
def test_behind_gates(disguise: Callable[..., tuple[Tensor, Tensor, Tensor]], function: Callable[..., Tensor]) -> None:
    for seed in SEEDS:
        torch.manual_seed(seed)
        model, x = Gate(8, function).double().eval(), torch.randn(4, 7, dtype=torch.float64)
        hidden = gated(model, *disguise(torch.Generator().manual_seed(seed)))
        clean = outputs(model, x)
        assert relative_error(outputs(hidden, x), clean) < 1e-9, "not a disguise"
        result = recover(hidden, x)
        assert [space.after for space in result.report.spaces] == [9, 8, 6]
        assert relative_error(outputs(result.model, x), clean) < 1e-9
        assert not recover(model, x).report.changed


@pytest.mark.parametrize("noise", [0.0, 1e-5])
def test_a_channel_that_was_mixed_with_others_behind_its_gate(noise: float) -> None:
    """`f(u)·v` becomes three channels, of whose lines and columns no two are proportional and none is zero."""
    for seed in SEEDS:
        torch.manual_seed(seed)
        model, x = Gate(8, functional.silu).double().eval(), torch.randn(4, 7, dtype=torch.float64)
        first = torch.cat([model.u.weight.data[:1], model.u.bias.data[:1, None]], dim=1)
        mix = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))[0]
        lines = mix @ torch.cat([first, torch.randn(2, 10, dtype=torch.float64)])
        columns = torch.cat([model.out.weight.data[:, :1], torch.zeros(6, 2).double()], dim=1) @ mix.T
        gate = torch.cat([model.a.weight.data[:1], model.a.bias.data[:1, None]], dim=1).expand(2, -1)
        hidden = gated(model, gate, lines[1:], columns[:, 1:])
        hidden.u.weight.data[0], hidden.u.bias.data[0] = lines[0, :-1], lines[0, -1]
        hidden.out.weight.data[:, 0] = columns[:, 0]
        clean = outputs(model, x)
        assert relative_error(outputs(hidden, x), clean) < 1e-9, "not a disguise"
        for layer in (hidden.a, hidden.u, hidden.out):
            layer.weight.data *= 1 + noise * torch.randn_like(layer.weight)
        result = recover(hidden, x)
        assert [space.after for space in result.report.spaces] == [9, 8, 6]
        assert relative_error(outputs(result.model, x), clean) < max(1e-9, 100 * noise)
    without = tuple(known for known in PASSES if known.__name__ != "gated")
    assert recover(hidden, x, passes=without).report.spaces[1].after == 10


def grouped(seed: int) -> tuple[Any, Tensor]:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.ReLU(),
        nn.Conv2d(8, 6, 3, padding=1, groups=2), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 3),
    )  # fmt: skip
    return model.double().eval(), torch.randn(2, 3, 6, 6, dtype=torch.float64)


@pytest.mark.parametrize("kind", ["mirrored", "dead"])
def test_inside_groups(kind: str) -> None:
    """Each group of the layer in the middle has six more channels, or two."""
    for seed in SEEDS:
        model, x = grouped(seed)
        clean, (a, b) = outputs(model, x), (model[2], model[4])
        rows, columns, biases = [], [], []
        for block in range(2):
            p, q = torch.randn(2, 1, 4, 3, 3, dtype=torch.float64)
            w = torch.randn(3, 1, 3, 3, dtype=torch.float64)
            if kind == "mirrored":
                fresh, read, bias = around(p, q), torch.cat([w, -w, w, -w, -w, w], 1), torch.zeros(6)
            else:
                fresh, read, bias = torch.cat([-p.abs(), -q.abs()]), torch.cat([w, w], 1), -torch.ones(2)
            rows += [a.weight.data[4 * block : 4 * block + 4], fresh]
            biases += [a.bias.data[4 * block : 4 * block + 4], bias.double()]
            columns.append(torch.cat([b.weight.data[3 * block : 3 * block + 3], read], dim=1))
        a.weight, a.bias, b.weight = (
            nn.Parameter(torch.cat(rows)),
            nn.Parameter(torch.cat(biases)),
            nn.Parameter(torch.cat(columns)),
        )
        a.out_channels = b.in_channels = a.weight.shape[0]
        assert relative_error(outputs(model, x), clean) < 1e-9, "not a disguise"
        result = recover(model, x)
        assert result.report.spaces[1].after == 8
        assert relative_error(outputs(result.model, x), clean) < 1e-9


def dead(plain: Plain) -> nn.Module:
    rows = -drawn(plain, 3, *plain.model[Plain.A].weight.shape[1:]).abs()
    columns = drawn(plain, plain.model[Plain.B].out_channels, 3, *plain.model[Plain.B].kernel_size)
    return widened(plain, rows, -torch.ones(3).double(), columns, {"bias": -torch.ones(3)})


def mirrored(plain: Plain) -> nn.Module:
    a, b = plain.model[Plain.A], plain.model[Plain.B]
    p, q, w = (
        drawn(plain, 1, *a.weight.shape[1:]),
        drawn(plain, 1, *a.weight.shape[1:]),
        drawn(plain, b.out_channels, 1, 1, 1),
    )
    w = w.expand(-1, 1, *b.kernel_size)
    return widened(plain, around(p, q), torch.zeros(6), torch.cat([w, -w, w, -w, -w, w], 1))


@pytest.mark.parametrize(("disguise", "off"), [(dead, 0.0), (mirrored, 0.2)])
def test_one_slope_for_all(disguise: Callable[[Plain], nn.Module], off: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """`nn.PReLU()` has one number for all channels, and is a function like others once that is known."""
    monkeypatch.setitem(ACTIVATIONS, "slope", lambda: nn.PReLU(init=off))
    for seed in SEEDS:
        plain = network(seed, "slope")
        for module in plain.model:
            if isinstance(module, nn.PReLU):
                module.weight.data.fill_(off)
        clean, hidden = outputs(plain.model, plain.example), disguise(plain)
        assert relative_error(outputs(hidden, plain.example), clean) < 1e-9, "not a disguise"
        result = recover(hidden, plain.example)
        assert result.report.spaces[1].after == plain.model[Plain.A].out_channels
        assert not recover(plain.model, plain.example).report.changed


def test_rows_whose_squares_are_no_numbers() -> None:
    """1e-30 in float32, read as loudly as any other."""
    for seed in SEEDS:
        plain = network(seed)
        a, b = plain.model[Plain.A], plain.model[Plain.B]
        rows = 1e-30 * drawn(plain, 3, *a.weight.shape[1:])
        hidden = widened(plain, rows, torch.zeros(3), drawn(plain, b.out_channels, 3, *b.kernel_size)).float()
        assert recover(hidden, plain.example.float()).report.spaces[1].after == a.out_channels


class Branched(nn.Module):
    """A layer over constants, beside which a branch gives zero: of two that cancel in `last`."""

    def __init__(self) -> None:
        super().__init__()
        self.stem: Any = nn.Conv2d(3, 9, 3, padding=1)
        self.a = nn.Conv2d(9, 8, 1, bias=False)
        self.first = nn.Conv2d(9, 4, 3, padding=1, bias=False)
        self.last: Any = nn.Conv2d(4, 8, 1)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.stem(x))
        x = self.norm(self.a(x) + self.last(functional.relu(self.first(x))))
        made: Tensor = self.head(functional.gelu(x).mean((2, 3)))
        return made


def test_constants_beside_a_branch_that_has_cancelled() -> None:
    """The norm behind the sum takes them up, and the branch need not."""
    for seed in SEEDS:
        torch.manual_seed(seed)
        model, x = Branched().double().eval(), torch.randn(2, 3, 6, 6, dtype=torch.float64)
        model.stem.weight.data[:2], model.stem.bias.data[:2] = 0, 0.7
        model.first.weight.data[[1, 3]] = model.first.weight.data[[0, 2]]
        model.last.weight.data[:, [1, 3]] = -model.last.weight.data[:, [0, 2]]
        model.last.bias.data.zero_()
        result = recover(model, x)
        assert result.report.spaces[0].after == 7
        assert relative_error(outputs(result.model, x), outputs(model, x)) < 1e-9


def test_small_rows_over_bounded_inputs_stay() -> None:
    """Fifteen numbers between zero and one can hardly lift a row, and a shift like the others' holds it: chance."""
    for seed in range(40):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(6, 15), nn.Sigmoid(), nn.Linear(15, 32), nn.ReLU(), nn.Linear(32, 3)
        ).double().eval()  # fmt: skip
        for layer in (model[0], model[2]):
            assert isinstance(layer, nn.Linear)
            layer.bias.data.normal_(-0.5, 0.5)
        assert not recover(model, torch.randn(3, 6).double()).report.changed, f"seed {seed}"


class Bottleneck(nn.Module):
    """Expansion, depthwise kernels, projection, as in MobileNetV2."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Conv2d(8, 24, 1, bias=False)
        self.norm: Any = nn.BatchNorm2d(24)
        self.kernels, self.second = nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False), nn.BatchNorm2d(24)
        self.stem, self.project, self.head = nn.Conv2d(3, 8, 1), nn.Conv2d(24, 8, 1), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu6(self.norm(self.expand(self.stem(x))))
        x = self.project(functional.relu6(self.second(self.kernels(x))))
        made: Tensor = self.head(x.mean((2, 3)))
        return made


def test_channels_that_training_gave_up_stay() -> None:
    """As in EfficientNet-Lite0: filters of 1e-8, kernels of 1e-7 or zero behind them, and columns as small."""
    for seed in SEEDS:
        torch.manual_seed(seed)
        model, x = Bottleneck().eval(), torch.randn(2, 3, 6, 6)
        for number, (row, kernel, column) in enumerate([(1e-8, 0.0, 1e-8), (1e-8, 1e-7, 1e-7), (1e-6, 1e-6, 1e-4)]):
            model.expand.weight.data[number] *= row
            model.norm.running_var[number], model.norm.bias.data[number] = 1e-14, -1.2
            model.kernels.weight.data[number] *= kernel
            model.second.bias.data[number] = (0.2, -0.9, -0.9)[number]
            model.project.weight.data[:, number] *= column
        result = recover(model, x)
        assert not result.report.changed
        for name, tensor in model.state_dict().items():
            assert torch.equal(result.model.state_dict()[name], tensor)


def noisy(model: nn.Module, generator: torch.Generator, relative: float, absolute: float) -> nn.Module:
    """Noise on every parameter, relative to itself and to the spread of its tensor."""
    for tensor in model.parameters():
        first, second = (torch.randn(tensor.shape, generator=generator, dtype=torch.float64) for _ in range(2))
        spread = tensor.data.std() if tensor.numel() > 1 else 0.0
        tensor.data += relative * tensor.data * first + absolute * spread * second
    return model


def grown(plain: Plain) -> nn.Module:
    model: Any = copy.deepcopy(plain.model)
    for place in (Plain.STEM, Plain.A):
        layer = model[place]
        layer.weight = nn.Parameter(functional.pad(layer.weight.data, (1, 1, 1, 1)))
        layer.kernel_size, layer.padding = (5, 5), (2, 2)
    return model  # type: ignore[no-any-return]


def constant(plain: Plain) -> nn.Module:
    """Two channels with a shift and no filter, taken off in the bias of `b`, which reads them inside alone."""
    a, old = plain.model[Plain.A], plain.model[Plain.B]
    biased = nn.Conv2d(old.in_channels, old.out_channels, old.kernel_size, padding=old.padding)
    plain.model[Plain.B] = biased.double().eval()
    plain.model[Plain.B].weight.data, middle = old.weight.data, old.kernel_size[0] // 2
    values, columns = torch.tensor([0.6, 0.9], dtype=torch.float64), torch.zeros_like(old.weight.data[:, :2])
    columns[:, :, middle, middle] = drawn(plain, old.out_channels, 2)
    hidden: Any = widened(plain, torch.zeros_like(a.weight.data[:2]), values, columns)
    hidden[Plain.B].bias.data -= columns.sum((2, 3)) @ values
    return hidden  # type: ignore[no-any-return]


def mirrored_loudly(plain: Plain) -> nn.Module:
    a, b = plain.model[Plain.A], plain.model[Plain.B]
    p, q = drawn(plain, 2, 1, *a.weight.shape[1:]) / a.weight[0].numel() ** 0.5
    w = drawn(plain, b.out_channels, 1, *b.kernel_size)
    return widened(plain, around(p, q), torch.zeros(6), torch.cat([w, -w, w, -w, -w, w], 1))


def turned(plain: Plain) -> nn.Module:
    """`f(u)` and `f(−u)`, read with the same columns: for an odd function they cancel."""
    a, b = plain.model[Plain.A], plain.model[Plain.B]
    u, w = drawn(plain, 1, *a.weight.shape[1:]), drawn(plain, b.out_channels, 1, *b.kernel_size)
    return widened(plain, torch.cat([u, -u]), torch.zeros(2), torch.cat([w, w], 1))


def summed(plain: Plain) -> nn.Module:
    """Filters that are nowhere negative pass a ReLU behind a ReLU as they are: two of them and their sum."""
    a, b = plain.model[Plain.A], plain.model[Plain.B]
    u, w = drawn(plain, 2, *a.weight.shape[1:]).abs(), drawn(plain, b.out_channels, 1, *b.kernel_size)
    u = torch.cat([u, u.sum(0, keepdim=True)]) / u[0].numel()
    return widened(plain, u, torch.tensor([1.0, 2.0, 3.0]), torch.cat([w, w, -w], 1))


@pytest.mark.parametrize(
    ("disguise", "relative", "absolute", "activation"),
    [
        (grown, 0.0, 1e-5, "relu"), (constant, 0.0, 5e-6, "relu"), (mirrored_loudly, 1e-3, 0.0, "relu"),
        (turned, 0.0, 1e-5, "tanh"), (turned, 1e-3, 0.0, "tanh"), (summed, 1e-5, 0.0, "relu"),
    ],
)  # fmt: skip
def test_noise_after_the_disguise(
    disguise: Callable[[Plain], nn.Module], relative: float, absolute: float, activation: str
) -> None:
    for seed in SEEDS:
        plain = network(seed, activation)
        hidden = disguise(plain)
        clean = outputs(plain.model, plain.example)
        assert relative_error(outputs(hidden, plain.example), clean) < 1e-9, "not a disguise"
        result = recover(noisy(hidden, plain.generator, relative, absolute), plain.example)
        for name, tensor in plain.model.state_dict().items():
            assert result.model.state_dict()[name].shape == tensor.shape, f"{name}, seed {seed}"
        assert relative_error(outputs(result.model, plain.example), clean) < 30 * max(relative, absolute)


@pytest.mark.parametrize(("activation", "shift"), [("relu", -1e9), ("gelu", -1e5), ("silu", -5e3)])
def test_shifts_beyond_everything(activation: str, shift: float) -> None:
    """No input takes such a unit to where its function bends, although none is bounded."""
    for seed in SEEDS:
        plain = network(seed, activation)
        a, b = plain.model[Plain.A], plain.model[Plain.B]
        rows = drawn(plain, 2, *a.weight.shape[1:]) / a.weight[0].numel() ** 0.5
        hidden = widened(plain, rows, torch.full((2,), shift), drawn(plain, b.out_channels, 2, *b.kernel_size))
        clean = outputs(plain.model, plain.example)
        assert relative_error(outputs(hidden, plain.example), clean) < 1e-9, "not a disguise"
        result = recover(hidden, plain.example)
        assert result.report.spaces[1].after == a.out_channels
        assert relative_error(outputs(result.model, plain.example), clean) < 1e-9
        hidden = widened(plain, rows, torch.full((2,), -30.0), drawn(plain, b.out_channels, 2, *b.kernel_size))
        assert recover(hidden, plain.example).report.spaces[1].after == a.out_channels + 2, "data may switch it on"


def test_nearly_equal_channels_that_are_not_equal() -> None:
    """What differs by a hundredth could be noise, and then takes a constant away; what does not lose it wins."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 9), nn.Linear(9, 12), nn.ReLU(), nn.Linear(12, 4)).double().eval()
    row, columns = torch.randn(1, 30, dtype=torch.float64), torch.randn(12, 1, dtype=torch.float64)
    hidden: Any = copy.deepcopy(model)
    first, second = hidden[0], hidden[1]
    first.weight = nn.Parameter(torch.cat([first.weight.data, row, row]))
    first.bias = nn.Parameter(torch.cat([first.bias.data, torch.tensor([2.0, 2.03], dtype=torch.float64)]))
    second.weight = nn.Parameter(torch.cat([second.weight.data, 20 * columns, -20 * columns], dim=1))
    second.bias.data += 0.6 * columns[:, 0]
    x = torch.randn(5, 30, dtype=torch.float64)
    clean = outputs(model, x)
    assert relative_error(outputs(hidden, x), clean) < 1e-9, "not a disguise"
    result = recover(hidden, x)
    assert result.report.spaces[0].after == 9
    assert relative_error(outputs(result.model, x), clean) < 1e-9
