"""Constants that biases take up, kernels that are cropped, groups that stay equal, widths that are known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import canon
from canon import zoo
from canon.recovery import RecoveryResult, recover
from tests.networks import Net, conv
from tests.preservation import assert_sizes_agree, outputs, randomize, relative_error
from tests.recovery.small import Chain, Draft, Residual, example


def recovered(model: nn.Module, given: Tensor | None = None, **options: object) -> RecoveryResult:
    """Recover, and hold the outputs against those of the input."""
    given = example() if given is None else given
    result = recover(model, given, **options)  # type: ignore[arg-type]
    assert relative_error(outputs(result.model, given), outputs(model, given)) < 1e-9
    assert_sizes_agree(result.model)
    return result


def widths(result: RecoveryResult) -> dict[str, tuple[int, int]]:
    return {s.name: (s.before, s.after) for s in result.report.spaces if s.before != s.after}


def draft_of(kind: type[Chain] | type[Residual], seed: int = 3) -> Draft:
    model = randomize(kind(), seed=seed)
    assert isinstance(model, kind)
    return Draft(model)


# -- constants ---------------------------------------------------------------------------------------------------------


def test_a_constant_goes_into_the_bias() -> None:
    draft = draft_of(Chain)
    column = draft.random(5, 1, 1)
    draft.add("a", {**draft.silent("a"), "na.bias": 0.7}, {"b.weight": column})
    expected = draft.state["b.bias"] + 0.7 * column[:, 0, 0]
    result = recovered(Chain.of(draft.state))
    assert widths(result) == {"a": (7, 6)}
    torch.testing.assert_close(result.model.get_parameter("b.bias").detach(), expected)
    (decision,) = (d for s in result.report.spaces for d in s.decisions)
    assert (decision.kind, decision.channels, decision.leader) == ("constant", (6,), None)


def without_bias(kernel: int = 1, shared: bool = False) -> nn.Module:
    """A constant channel in front of a layer without bias, with a norm behind it."""

    def forward(net: nn.Module, x: Tensor) -> Tensor:
        layers = dict(net.named_children())
        y = F.relu(layers["n"](layers["b"](F.relu(layers["a"](x)))))
        if shared:
            y = y + F.relu(layers["n"](layers["other"](x)))
        result: Tensor = layers["fc"](y.mean((2, 3)))
        return result

    net = randomize(Net(forward, a=conv(3, 6), b=conv(6, 5, kernel, bias=False), n=nn.BatchNorm2d(5),
                        other=conv(3, 5, bias=False) if shared else nn.Identity(), fc=nn.Linear(5, 2)))  # fmt: skip
    with torch.no_grad():
        net.get_parameter("a.weight")[2] = 0
        net.get_parameter("a.bias")[2] = 0.9
    return net


def test_a_constant_goes_into_the_mean_of_a_norm() -> None:
    net = without_bias()
    mean, column = net.get_buffer("n.running_mean"), net.get_parameter("b.weight")[:, 2, 0, 0].detach()
    result = recovered(net)
    assert widths(result) == {"a": (6, 5)}
    torch.testing.assert_close(result.model.get_buffer("n.running_mean"), mean - 0.9 * column)


def test_a_constant_stays_where_zeros_are_padded() -> None:
    assert not recovered(without_bias(kernel=3)).report.changed


def test_a_norm_that_is_used_twice_takes_up_nothing() -> None:
    assert not recovered(without_bias(shared=True)).report.changed


def test_constants_of_one_space_merge_where_they_cannot_go() -> None:
    """Two constants in front of a padded layer are one, whatever their values and signs are."""
    net = randomize(Net(lambda net, x: net.fc(net.b(F.silu(net.a(x))).relu().mean((2, 3))), a=conv(3, 6), b=conv(6, 5),
                        fc=nn.Linear(5, 2)))  # fmt: skip
    with torch.no_grad():
        net.get_parameter("a.weight")[:2] = 0
        net.get_parameter("a.bias")[:2] = torch.tensor([1.3, -0.4], dtype=torch.float64)
    assert widths(recovered(net)) == {"a": (6, 5)}


def test_a_layer_of_zeros_keeps_its_channels() -> None:
    """Nothing hides in a layer that holds nothing; a layer without channels would be no layer."""
    net = randomize(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 2)))
    for name in ("2.weight", "2.bias"):
        nn.init.zeros_(net.get_parameter(name))
    given = torch.randn(3, 8, dtype=torch.float64)
    assert not recovered(net, given).report.changed


# -- kernels -----------------------------------------------------------------------------------------------------------


def ring(weight: Tensor, count: int = 1) -> Tensor:
    return F.pad(weight.detach(), (count,) * 4)


def kernels(count: int = 1) -> tuple[nn.Module, Tensor]:
    """A padded, a depthwise and an unpadded convolution; the first two with rings of zeros around their kernels."""
    pad = 1 + count
    net = randomize(Net(lambda net, x: net.fc(net.c(net.d(net.a(x).relu()).relu()).relu().mean((2, 3))),
                        a=nn.Conv2d(3, 6, 3 + 2 * count, padding=pad, stride=2),
                        d=nn.Conv2d(6, 6, 3 + 2 * count, padding=pad, groups=6), c=nn.Conv2d(6, 4, 3),
                        fc=nn.Linear(4, 2)))  # fmt: skip
    inner = torch.randn(6, 3, 3, 3, dtype=torch.float64)
    with torch.no_grad():
        net.get_parameter("a.weight").copy_(ring(inner, count))
        net.get_parameter("d.weight").copy_(ring(inner[:, :1], count))
    return net, inner


def test_rings_of_zeros_are_cropped() -> None:
    for count in (1, 2):
        net, inner = kernels(count)
        result = recovered(net, torch.randn(2, 3, 11, 11, dtype=torch.float64))
        assert dict(result.report.cropped) == {"a.weight": (3, 3), "d.weight": (3, 3)}
        assert result.report.changed
        assert torch.equal(result.model.get_parameter("a.weight"), inner)
        for name in ("a", "d"):
            layer: Any = result.model.get_submodule(name)
            assert (layer.kernel_size, layer.padding) == ((3, 3), (1, 1))


def test_a_first_filter_of_zeros_hides_no_ring() -> None:
    net, _ = kernels()
    with torch.no_grad():
        net.get_parameter("a.weight")[0, 0] = 0
    result = recovered(net, torch.randn(2, 3, 11, 11, dtype=torch.float64))
    assert dict(result.report.cropped) == {"a.weight": (3, 3), "d.weight": (3, 3)}


@pytest.mark.parametrize("known_elsewhere", [False, True])
def test_a_ring_that_only_dummies_use(known_elsewhere: bool) -> None:
    """Kernels are cropped while channels go; where the program itself needs their size, channels go all the same."""

    def forward(net: Any, x: Tensor) -> Tensor:
        size = net.b.kernel_size[0] / 5 if known_elsewhere else 1
        return net.fc(net.b(net.a(x).relu()).relu().mean((2, 3))) * size  # type: ignore[no-any-return]

    net = randomize(Net(forward, a=nn.Conv2d(3, 6, 3, padding=1), b=nn.Conv2d(6, 8, 5, padding=2, stride=2),
                        fc=nn.Linear(8, 2)))  # fmt: skip
    inner = torch.randn(8, 6, 3, 3, dtype=torch.float64)
    with torch.no_grad():
        net.get_parameter("b.weight").copy_(ring(inner))
        net.get_parameter("b.weight")[5].normal_()  # read by nothing, as large as its kernel
        net.get_parameter("fc.weight")[:, 5] = 0
    result = recovered(net, torch.randn(2, 3, 11, 11, dtype=torch.float64))
    size = 5 if known_elsewhere else 3
    assert result.model.get_parameter("b.weight").shape == (7, 6, size, size)
    assert dict(result.report.cropped) == ({} if known_elsewhere else {"b.weight": (3, 3)})


@pytest.mark.parametrize(("weight", "size"), [(1e-3, (5, 3)), (1e-12, (3, 3))])
def test_one_weight_in_the_ring_keeps_its_axis(weight: float, size: tuple[int, int]) -> None:
    """Unless nothing that could be measured comes of it."""
    net, _ = kernels()
    with torch.no_grad():
        net.get_parameter("a.weight")[4, 1, 0, 2] = weight
    result = recovered(net, torch.randn(2, 3, 11, 11, dtype=torch.float64))
    assert dict(result.report.cropped) == {"d.weight": (3, 3), "a.weight": size}


def test_a_ring_without_padding_stays() -> None:
    """Where no padding made room for it, a smaller kernel would give a larger image."""
    net, _ = kernels()
    with torch.no_grad():
        net.get_parameter("c.weight")[:] = F.pad(net.get_parameter("c.weight")[:, :, 1:2, 1:2].clone(), (1, 1, 1, 1))
    result = recovered(net, torch.randn(2, 3, 11, 11, dtype=torch.float64))
    assert result.model.get_parameter("c.weight").shape[2:] == (3, 3)


# -- groups ------------------------------------------------------------------------------------------------------------


def grouped() -> nn.Module:
    return randomize(Net(lambda net, x: net.fc(net.g(net.a(x).relu()).relu().mean((2, 3))), a=conv(3, 8),
                         g=nn.Conv2d(8, 6, 3, groups=2), fc=nn.Linear(6, 2)))  # fmt: skip


def double(net: nn.Module, channel: int, source: int) -> None:
    with torch.no_grad():
        for name in ("a.weight", "a.bias"):
            net.get_parameter(name)[channel] = net.get_parameter(name)[source].clone()


def test_groups_stay_equal() -> None:
    net = grouped()
    double(net, 1, 0)
    result = recovered(net)
    assert not result.report.changed, "one group alone cannot lose a channel"
    assert [s.kept_ambiguous for s in result.report.spaces] == [1, 0, 0]
    double(net, 6, 5)
    result = recovered(net)
    assert widths(result) == {"a": (8, 6)}
    assert result.model.get_parameter("g.weight").shape == (6, 3, 3, 3)


def test_a_group_keeps_what_it_must_and_no_more() -> None:
    """Three copies in one group and one in the other: each loses one."""
    net = grouped()
    for channel, source in ((1, 0), (2, 0), (6, 5)):
        double(net, channel, source)
    result = recovered(net)
    assert widths(result) == {"a": (8, 6)}
    assert sum(s.kept_ambiguous for s in result.report.spaces) == 1


# -- widths ------------------------------------------------------------------------------------------------------------


def test_known_widths_keep_the_owners_channels() -> None:
    """An owner's own copy, null and unread channels stay; what the attacker added goes."""
    draft = draft_of(Chain)
    own = draft.copy("a", 0, 0.5, 0.5)
    draft.add("b", draft.silent("b"))
    draft.add("c")
    owner = Chain.of(draft.state)
    thief = Draft(owner)
    thief.clique("a", 3)
    thief.copy("a", own, 0.4, 0.6)
    thief.clique("b", 2)
    thief.add("c")
    attacked = thief.build()
    assert {s.name: s.after for s in recovered(attacked).report.spaces} == {"a": 6, "b": 5, "c": 4, "fc": 3}
    result = recovered(attacked, widths=owner)
    assert {s.name: s.after for s in result.report.spaces} == {"a": 7, "b": 6, "c": 5, "fc": 3}


def test_widths_that_are_wider_than_the_model_ask_for_nothing() -> None:
    model = randomize(Chain(), seed=3)
    assert not recovered(model, widths=Chain(a=60, b=50, c=40)).report.changed


def test_widths_by_name() -> None:
    model = zoo.model("squeezenet1_1")
    with torch.no_grad():
        model.get_parameter("features.3.squeeze.weight")[2] = 0
        model.get_parameter("features.3.squeeze.bias")[2] = 0
    given = zoo.example_input("squeezenet1_1")
    assert canon.recover(model, given, sanity_check=False).report.removed == 1
    kept = canon.recover(model, given, widths="squeezenet1_1")
    assert not kept.report.changed
    assert kept.report.agreement is None


def test_kernels_of_one_axis_shrink() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 4, 5, padding=2), nn.ReLU(), nn.Conv1d(4, 3, 3, padding=1), nn.Flatten()).eval()
    weight = model.get_parameter("0.weight")
    with torch.no_grad():
        weight[..., 0] = weight[..., -1] = 0
    sample = torch.randn(2, 2, 9)
    found = canon.recover(model, sample).model
    assert found.get_parameter("0.weight").shape == (4, 2, 3)
    assert torch.allclose(found(sample), model(sample), atol=1e-6)
