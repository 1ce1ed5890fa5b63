"""Every pass undoes what it is for, on random networks and disguises that Canon's attacks know nothing of.

Each case is shown to keep the function, to come back to the widths it had, and to stay wide without its pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from canon.errors import UnsupportedModelError
from canon.recovery import RecoveryReport, recover
from canon.recovery import reduce as reduction
from canon.recovery.passes import PASSES
from canon.rewrite.kernels import Kernel
from tests.preservation import outputs, relative_error
from tests.recovery.disguises import ACTIVATIONS, TURNING, Plain, drawn, folded, network, widened

SEEDS = range(20)


def columns_like(plain: Plain, count: int) -> Tensor:
    return drawn(plain, plain.model[Plain.B].out_channels, count, *plain.model[Plain.B].kernel_size)


def rows_like(plain: Plain, count: int) -> Tensor:
    shape = plain.model[Plain.A].weight.shape[1:]
    rows: Tensor = drawn(plain, count, *shape) / shape.numel() ** 0.5
    return rows


def dead(plain: Plain) -> nn.Module:
    """Filters that are nowhere positive over a ReLU, behind a norm with a shift below zero."""
    rows = -rows_like(plain, 3).abs()
    shift = {
        "bias": -drawn(plain, 3).abs(),
        "running_mean": drawn(plain, 3).abs(),
        "weight": 0.5 + drawn(plain, 3).abs(),
    }
    return widened(plain, rows, -drawn(plain, 3).abs(), columns_like(plain, 3), shift)


def held_up(plain: Plain) -> nn.Module:
    """The other way round: a norm that turns the sign."""
    rows = rows_like(plain, 3).abs()
    shift = {"bias": -drawn(plain, 3).abs(), "weight": -0.5 - drawn(plain, 3).abs()}
    return widened(plain, rows, drawn(plain, 3).abs(), columns_like(plain, 3), shift)


def below_the_floor(plain: Plain) -> nn.Module:
    """Filters of either sign over ReLU6, with a shift that they cannot make up for."""
    rows = rows_like(plain, 3)
    return widened(plain, rows, -6.1 * rows.abs().sum((1, 2, 3)), columns_like(plain, 3))


def mirrored_group(plain: Plain) -> nn.Module:
    """`±p, ±q, ±(p + q)` whose lines and even parts cancel."""
    p, q = rows_like(plain, 1), rows_like(plain, 1)
    s, t = drawn(plain, 1), drawn(plain, 1)
    rows = torch.cat([p, -p, q, -q, p + q, -p - q])
    w = columns_like(plain, 1)
    return widened(plain, rows, torch.cat([s, -s, t, -t, s + t, -s - t]), torch.cat([w, -w, w, -w, -w, w], dim=1))


def mirrored_copies(plain: Plain) -> nn.Module:
    """`f(u) = f(−u) + [f(v) − f(−v)] + [f(u − v) − f(v − u)]`: no channel has the filter `u` any more."""
    filters, shifts = folded(plain)
    u, s = filters[:1], shifts[:1]
    v, t = rows_like(plain, 1), drawn(plain, 1)
    w = plain.model[Plain.B].weight.data[:, :1]
    rows = torch.cat([-u, v, -v, u - v, v - u])
    columns = torch.cat([w, w, -w, w, -w], dim=1)
    keep = torch.arange(1, plain.model[Plain.A].out_channels)
    return widened(plain, rows, torch.cat([-s, t, -t, s - t, t - s]), columns, keep=keep)


def both_signs(plain: Plain) -> nn.Module:
    """Some units in part as `2·f(0) − f(−u)`, and units of both signs that together are constant."""
    old = plain.model[Plain.B]
    b: Any = nn.Conv2d(old.in_channels, old.out_channels, 1).double().eval()
    b.weight.data.copy_(drawn(plain, *b.weight.shape) / b.in_channels**0.5)
    plain.model[Plain.B] = b  # where zeros are padded in, a constant is none
    filters, shifts = folded(plain)
    u, s, p, t = filters[:2], shifts[:2], rows_like(plain, 1), drawn(plain, 1)
    w, v, share = b.weight.data[:, :2], columns_like(plain, 1), 0.3
    rows, columns = torch.cat([u, -u, p, -p]), torch.cat([(1 - share) * w, -share * w, v, v], dim=1)
    keep = torch.arange(2, plain.model[Plain.A].out_channels)
    hidden: Any = widened(plain, rows, torch.cat([s, -s, t, -t]), columns, keep=keep)
    twice = 2 * plain.model[Plain.NORM + 1](torch.zeros((), dtype=torch.float64))
    hidden[Plain.B + 1].running_mean += twice * (v.sum(1) - share * w.sum(1)).flatten()
    return hidden  # type: ignore[no-any-return]


def hardly_read(plain: Plain) -> nn.Module:
    sizes = 10.0 ** -torch.linspace(12, 30, 4, dtype=torch.float64)
    return widened(plain, rows_like(plain, 4), drawn(plain, 4), columns_like(plain, 4) * sizes[:, None, None])


def hardly_there(plain: Plain) -> nn.Module:
    sizes = 10.0 ** -torch.linspace(12, 30, 4, dtype=torch.float64)
    return widened(
        plain, rows_like(plain, 4) * sizes[:, None, None, None], drawn(plain, 4) * sizes, columns_like(plain, 4)
    )


def noisy_zeros(plain: Plain) -> nn.Module:
    return widened(plain, 1e-6 * rows_like(plain, 3), 1e-6 * drawn(plain, 3), columns_like(plain, 3))


def noisy_clique(plain: Plain) -> nn.Module:
    """Equal channels whose columns sum to noise."""
    row, shift, size = rows_like(plain, 1), drawn(plain, 1), plain.model[Plain.B].weight.data.std()
    free = columns_like(plain, 3)
    columns = size * (free - free.mean(1, keepdim=True) + 3e-6 * columns_like(plain, 3))
    return widened(plain, row.repeat(3, 1, 1, 1), shift.repeat(3), columns)


def endless(plain: Plain) -> nn.Module:
    return widened(
        plain, rows_like(plain, 2), torch.full((2,), -torch.inf, dtype=torch.float64), columns_like(plain, 2)
    )


CASES: list[tuple[str, str, Callable[[Plain], nn.Module], str, str, float]] = [
    ("unreachable", "dead", dead, "relu", "relu", 1e-10),
    ("unreachable", "held up", held_up, "relu", "relu", 1e-10),
    ("unreachable", "below the floor", below_the_floor, "relu", "relu6", 1e-10),
    *(("mirrored", f"group, {f}", mirrored_group, f, "none", 1e-10) for f in ACTIVATIONS),
    *(("turned", f"both signs, {f}", both_signs, f, "none", 1e-10) for f in TURNING),
    *(("mirrored", f"copies, {f}", mirrored_copies, f, "none", 1e-10) for f in ("relu", "gelu", "silu", "hardswish")),
    ("faint", "hardly read", hardly_read, "relu", "relu", 1e-8),
    ("faint", "hardly there", hardly_there, "gelu", "relu", 1e-8),
    ("faint", "noisy zeros", noisy_zeros, "relu", "none", 1e-4),
    ("compact", "noisy clique", noisy_clique, "silu", "relu", 1e-4),
    ("endless", "endless", endless, "relu", "none", 1e-10),
]  # fmt: skip


def after(report: RecoveryReport) -> int:
    return report.spaces[1].after


@pytest.mark.parametrize(
    ("step", "name", "disguise", "activation", "stem", "tolerance"), CASES, ids=[c[1] for c in CASES]
)
def test_widths_come_back(
    step: str, name: str, disguise: Callable[[Plain], nn.Module], activation: str, stem: str, tolerance: float
) -> None:  # fmt: skip
    for seed in SEEDS:
        plain = network(seed, activation, stem)
        hidden = disguise(plain)
        clean = outputs(plain.model, plain.example)
        assert relative_error(outputs(hidden, plain.example), clean) < tolerance, f"{name}, seed {seed}: not a disguise"
        result = recover(hidden, plain.example)
        assert after(result.report) == plain.model[Plain.A].out_channels, f"{name}, seed {seed}"
        assert relative_error(outputs(result.model, plain.example), clean) < max(1e-9, tolerance / 10)
    without = tuple(known for known in PASSES if known.__name__ != step)
    assert len(without) == len(PASSES) - 1
    if step == "endless":
        with pytest.raises(UnsupportedModelError, match="infinity"):
            recover(hidden, plain.example, passes=without)
        return
    assert after(recover(hidden, plain.example, passes=without).report) > plain.model[Plain.A].out_channels


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_clean_networks_stay(seed: int, activation: str) -> None:
    plain = network(seed, activation)
    result = recover(plain.model, plain.example)
    assert not result.report.changed
    for name, tensor in plain.model.state_dict().items():
        assert torch.equal(result.model.state_dict()[name], tensor)


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_linear_bases(seed: int, negative: bool) -> None:
    """Between two layers without a function: sums of channels, or copies of negative sign."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    width, more = 6, 3
    a: Any = nn.Conv2d(16, width, 1, bias=False)
    b: Any = nn.Conv2d(width, 12, 1)
    front = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU())
    back = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 3))
    clean = nn.Sequential(*front, a, b, *back).double().eval()
    mix = -2 * torch.eye(width, dtype=torch.float64)[:more] if negative else random(more, width)
    basis = torch.cat([torch.eye(width, dtype=torch.float64), mix])[torch.randperm(width + more, generator=generator)]
    spare = torch.eye(width + more, dtype=torch.float64) - basis @ torch.linalg.pinv(basis)
    reader = torch.linalg.pinv(basis) + random(width, width + more) @ spare
    wide: Any = (nn.Conv2d(16, width + more, 1, bias=False).double(), nn.Conv2d(width + more, 12, 1).double())
    with torch.no_grad():
        wide[0].weight.copy_(torch.einsum("ab,bcij->acij", basis, a.weight))
        wide[1].weight.copy_(torch.einsum("obij,bk->okij", b.weight, reader))
        wide[1].bias.copy_(b.bias)
    hidden = nn.Sequential(*front, *wide, *back).double().eval()
    example = random(2, 3, 8, 8)
    assert relative_error(outputs(hidden, example), outputs(clean, example)) < 1e-10
    result = recover(hidden, example)
    assert [s.after for s in result.report.spaces][:3] == [16, width, 12]
    without = tuple(known for known in PASSES if known.__name__ != "basis")
    assert recover(hidden, example, passes=without).report.spaces[1].after == width + more
    assert relative_error(outputs(result.model, example), outputs(clean, example)) < 1e-9


def transformed(count: int, seed: int, kind: str) -> tuple[Any, Any]:
    """An MLP over a layer norm, and the same with units that the norm holds where their function is simple."""
    generator = torch.Generator().manual_seed(seed)

    def make(hidden: int) -> Any:
        stem, head = nn.Linear(6, 16), nn.Linear(hidden, 4)
        return nn.Sequential(stem, nn.LayerNorm(16), nn.Linear(16, hidden), nn.Hardswish(), head).double().eval()

    clean, hidden = make(20), make(20 + count)
    for tensor in clean.parameters():
        tensor.data = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
    for old, new in zip(clean, hidden, strict=True):
        for name, tensor in old.named_parameters():
            new.get_parameter(name).data[tuple(map(slice, tensor.shape))] = tensor.data
    up, down, gain, shift = hidden[2], hidden[4], clean[1].weight.data, clean[1].bias.data
    rows = torch.randn(count, 16, generator=generator, dtype=torch.float64)
    if kind == "on":
        rows[1::2] = -rows[::2]
    reach = 4 * (rows * gain).norm(dim=1)  # what a filter can make of sixteen channels of a layer norm
    up.weight.data[20:] = rows
    up.bias.data[20:] = (reach + 4) * (1 if kind == "on" else -1) - rows @ shift
    columns = torch.randn(4, count, generator=generator, dtype=torch.float64)
    if kind == "on":
        columns[:, 1::2] = columns[:, ::2]
        down.bias.data -= columns @ (reach + 4)
    down.weight.data[:, 20:] = columns
    return clean, hidden


@pytest.mark.parametrize(("kind", "step"), [("off", "unreachable"), ("on", "basis")])
def test_units_that_a_layer_norm_holds(kind: str, step: str) -> None:
    """Always off, or always on: then pairs of both signs are constant together."""
    for seed in range(10):
        clean, hidden = transformed(6, seed, kind)
        given = torch.randn(3, 6, dtype=torch.float64)
        assert relative_error(outputs(hidden, given), outputs(clean, given)) < 1e-10
        result = recover(hidden, given)
        assert result.report.spaces[1].after == 20, f"seed {seed}"
        assert relative_error(outputs(result.model, given), outputs(clean, given)) < 1e-9
        assert not recover(clean, given).report.changed
    without = tuple(known for known in PASSES if known.__name__ != step)
    assert recover(hidden, given, passes=without).report.spaces[1].after == 26


def test_sums_beside_shifts_that_nothing_else_gives() -> None:
    """Of a bottleneck with biases, sums have none: one more channel has to stay, or gives the shift itself."""
    torch.manual_seed(0)
    a, b = nn.Linear(16, 9).double(), nn.Linear(9, 12).double()
    mix = torch.randn(3, 6, dtype=torch.float64)
    a.weight.data[6:], a.bias.data[6:] = mix @ a.weight.data[:6], 0.0
    net = nn.Sequential(nn.Linear(8, 16).double(), nn.ReLU(), a, b, nn.ReLU(), nn.Linear(12, 3).double()).eval()
    given = torch.randn(4, 8, dtype=torch.float64)
    result = recover(net, given)
    assert result.report.spaces[1].after in (6, 7)
    assert relative_error(outputs(result.model, given), outputs(net, given)) < 1e-9


def test_a_linear_layer_that_widens_stays() -> None:
    """More channels than inputs are dependent by nature."""
    net = nn.Sequential(nn.Linear(4, 12), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
    assert not recover(net, torch.zeros(2, 4)).report.changed


KERNELS: dict[str, Any] = {
    "same": ("same", 1, "zeros", (1, 1), (1, 1), "same"),
    "same, one axis": ("same", 1, "zeros", (0, 1), (0, 1), "same"),
    "one axis": ((1, 1), 1, "zeros", (0, 1), (0, 1), (1, 2)),
    "dilated": ((2, 2), 2, "zeros", (1, 1), (1, 1), (4, 4)),
    "circular": ((1, 1), 1, "circular", (1, 1), (1, 1), (2, 2)),
    "reflected, one axis": ((1, 1), 1, "reflect", (1, 0), (1, 0), (2, 1)),
    "dilated, same": ("same", 2, "zeros", (1, 0), (1, 0), "same"),
}
"""By name: padding, dilation and mode, entries before and after, and the padding that makes room for them."""


@pytest.mark.parametrize("groups", [1, 8])
@pytest.mark.parametrize("name", KERNELS)
def test_grown_kernels(name: str, groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in SEEDS:
        hidden, example = grown_kernel(name, groups, seed)
    monkeypatch.setattr(Kernel, "removable", lambda kernel, used: ())
    assert not recover(hidden, example).report.cropped


def grown_kernel(name: str, groups: int, seed: int) -> tuple[nn.Module, Tensor]:
    """A network with one grown kernel, which is shown to come back."""
    torch.manual_seed(seed)
    padding, dilation, mode, before, behind, room = KERNELS[name]
    options: Any = {"dilation": dilation, "padding_mode": mode, "groups": groups}
    plain: Any = nn.Conv2d(8, 8, 3, padding=padding, **options)
    size = tuple(3 + a + b for a, b in zip(before, behind, strict=True))
    grown: Any = nn.Conv2d(8, 8, size, padding=room, **options)
    with torch.no_grad():
        grown.weight.zero_()
        grown.weight[:, :, before[0] : before[0] + 3, before[1] : before[1] + 3] = plain.weight
        grown.bias.copy_(plain.bias)
    first, last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
    clean, hidden = (nn.Sequential(first, nn.ReLU(), c, nn.ReLU(), last).double().eval() for c in (plain, grown))
    example = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    assert relative_error(outputs(hidden, example), outputs(clean, example)) < 1e-12
    found: Any = recover(hidden, example)
    layer = found.model[2]
    assert (layer.kernel_size, layer.padding) == ((3, 3), plain.padding)
    assert torch.equal(layer.weight, plain.weight)
    assert found.report.cropped == {"2.weight": (3, 3)}
    assert relative_error(outputs(found.model, example), outputs(clean, example)) < 1e-12
    return hidden, example


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("inside", [True, False])
def test_constants_behind_zero_padding(kernel: int, inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of a kernel that never stand on padding read a constant as a bias would; the others do not."""
    for seed in SEEDS:
        hidden, example = constants_behind_padding(kernel, inside, seed)
    monkeypatch.setattr(reduction, "foldable", lambda *given: {})
    assert recover(hidden, example).report.spaces[0].after == 7


def constants_behind_padding(kernel: int, inside: bool, seed: int) -> tuple[nn.Module, Tensor]:
    """A network with two constant channels, of which one value remains or none."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(kernel + 100 * seed)
    a: Any = nn.Conv2d(3, 8, 3, padding=1)
    b = nn.Conv2d(8, 6, kernel, padding=kernel // 2)
    rest = (nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 3))
    hidden: Any = nn.Sequential(a, nn.ReLU(), b, *rest).double().eval()
    with torch.no_grad():
        a.weight[[1, 4]] = 0
        a.bias[[1, 4]] = 0.7
        b.weight[:, [1, 4]] = 0
        place = kernel // 2 if inside else 0
        b.weight[:, [1, 4], place, place] = torch.randn(6, 2, generator=generator, dtype=torch.float64)
    example = torch.randn(2, 3, 9, 9, generator=generator, dtype=torch.float64)
    result = recover(hidden, example)
    assert result.report.spaces[0].after == (6 if inside else 7)
    assert relative_error(outputs(result.model, example), outputs(hidden, example)) < 1e-10
    return hidden, example


def test_grown_kernels_of_a_model_without_dummies_are_cropped_by_a_pass_of_their_own() -> None:
    torch.manual_seed(0)
    first, second = nn.Conv2d(3, 8, 5, padding=2), nn.Conv2d(8, 4, 3, padding=1)
    with torch.no_grad():
        first.weight[:, :, [0, 4]] = 0
        first.weight[:, :, :, [0, 4]] = 0
    net = nn.Sequential(first, nn.ReLU(), second).double().eval()
    example = torch.randn(2, 3, 9, 9, dtype=torch.float64)
    found = recover(net, example).model
    assert tuple(found.get_parameter("0.weight").shape) == (8, 3, 3, 3)
    assert relative_error(outputs(found, example), outputs(net, example)) < 1e-12
    without = tuple(known for known in PASSES if known.__name__ != "grown")
    assert tuple(recover(net, example, passes=without).model.get_parameter("0.weight").shape) == (8, 3, 5, 5)
