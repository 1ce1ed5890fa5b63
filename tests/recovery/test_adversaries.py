"""Attackers that Canon does not contain: each keeps the function in its own way, and each must be undone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from canon.recovery import recover
from tests.preservation import outputs, randomize, relative_error
from tests.recovery.small import Chain, Draft, Gated, Residual, Small, example

Adversary = Callable[[Draft], None]


def wild_shares(draft: Draft) -> None:
    """A channel in parts of 1000 and -999."""
    for channel in range(6):
        draft.copy("a", channel, 1000.0, -999.0)


def wild_shares_everywhere(draft: Draft) -> None:
    for space in ("a", "b", "c"):
        for channel in range(draft.width(space)):
            draft.copy(space, channel, 1000.0, -999.0)


def negative_scale(draft: Draft) -> None:
    """Copies with the sign turned between layer and norm."""
    for channel in range(4):
        copy = draft.copy("a", channel, 0.4, 0.6)
        for name in ("a.weight", "a.bias", "na.running_mean", "na.weight"):
            draft.state[name][copy] *= -1
        factor = 3.0
        eps = 1e-5
        for name in ("a.weight", "a.bias", "na.running_mean"):
            draft.state[name][copy] *= factor
        var = draft.state["na.running_var"][copy].clone()
        draft.state["na.running_var"][copy] = var * factor**2
        draft.state["na.weight"][copy] *= ((var * factor**2 + eps) / (var + eps)).sqrt() / factor


def shifted_copies(draft: Draft) -> None:
    """Copies whose bias and mean are moved together, and whose factor is shared out anew between norm and row."""
    for channel in range(5):
        copy = draft.copy("a", channel, 0.25, 0.75)
        draft.state["a.bias"][copy] += 5.0
        draft.state["na.running_mean"][copy] += 5.0
        copy = draft.copy("b", channel % 5, -0.5, 1.5)
        draft.state["nb.running_var"][copy] = 4 * draft.state["nb.running_var"][copy] + 3 * 1e-5
        draft.state["nb.weight"][copy] *= 2


def positive_scales(draft: Draft) -> None:
    """Copies scaled by a million and a millionth behind the norm."""
    for channel, factor in ((0, 1e6), (1, 1e-6), (2, 7.0)):
        copy = draft.copy("a", channel, 0.3, 0.7)
        draft.scale(("na.weight", "na.bias"), ("b.weight",), copy, factor)


def constant_channels(draft: Draft) -> None:
    """A channel that is always 0.7, taken off again in the bias of the layer that reads it."""
    for level in (0.7, 2.5):
        column = draft.random(draft.width("b"), 1, 1)
        silent = {**draft.silent("a"), "na.bias": level}
        draft.add("a", silent, {"b.weight": column})
        draft.state["b.bias"] -= column[:, 0, 0] * level


def constants_in_pairs(draft: Draft) -> None:
    """Two constant channels that cancel each other even at a zero-padded border."""
    column = draft.random(draft.width("c"), 3, 3)
    draft.add("b", {**draft.silent("b"), "nb.bias": 0.5}, {"c.weight": column})
    draft.add("b", {**draft.silent("b"), "nb.bias": 1.5}, {"c.weight": -column / 3})


def switched_off(draft: Draft) -> None:
    """A norm of weight zero hides whatever the row computes."""
    for offset in (0.0, -1.0):
        column = draft.random(draft.width("b"), 1, 1)
        draft.add("a", {"na.weight": 0.0, "na.bias": offset}, {"b.weight": column})


def null_terms(draft: Draft) -> None:
    """Copies whose rows look different because each reads a clique in its own way."""
    draft.copy("b", 0, 0.5, 0.5)
    draft.copy("b", 1, 2.0, -1.0)
    draft.clique("a", 3)
    draft.clique("a", 2, draft.silent("a"))


def chained(draft: Draft) -> None:
    """Dead channels read cliques without cancelling them, null ones read null ones."""
    members = draft.clique("a", 3)
    null = draft.add("a", draft.silent("a"))
    draft.state["b.weight"][:, null] = draft.random(*draft.state["b.weight"][:, null].shape)
    row = draft.random(*draft.state["b.weight"].shape[1:])
    row[members] += 3
    draft.add("b", {"b.weight": row})
    row = torch.zeros_like(row)
    row[null] = 1.0
    reader = draft.add("b", {**draft.silent("b"), "b.weight": row})
    draft.state["c.weight"][:, reader] = draft.random(*draft.state["c.weight"][:, reader].shape)


CHAIN: tuple[Adversary, ...] = (
    wild_shares, wild_shares_everywhere, negative_scale, shifted_copies, positive_scales, constant_channels,
    constants_in_pairs, switched_off, null_terms, chained,
)  # fmt: skip


def residual_copies(draft: Draft) -> None:
    """Copies of copies over all sums, shared out differently at every reader, in every order."""
    second = draft.copy("r", 0, 0.5, 0.5)
    third = draft.copy("r", second, 0.25, 0.75)
    draft.copy("r", third, -3.0, 4.0)
    weight = draft.state["fc.weight"]
    weight[:, 0] += 2.0
    weight[:, second] -= 2.0
    draft.copy("p", 1, 0.1, 0.9)
    draft.copy("q", 2, 5.0, -4.0)
    draft.copy("r", 3, 0.2, 0.8)


def residual_cliques(draft: Draft) -> None:
    """Cliques in two spaces that feed each other: each reads the other's, and cancels it or is dead."""
    draft.clique("r", 3)
    draft.clique("p", 2)
    draft.clique("q", 3)
    draft.clique("r", 2)


def dead_cycle(draft: Draft) -> None:
    """A channel that only feeds an inner one that only feeds the channel."""
    loop = draft.add("r")
    row = torch.zeros_like(draft.state["p1.weight"][0])
    row[loop] = draft.random(3, 3)
    column = torch.zeros_like(draft.state["p2.weight"][:, 0])
    column[loop] = draft.random(3, 3)
    draft.add("p", {"p1.weight": row}, {"p2.weight": column})


def mutual_cliques(draft: Draft) -> None:
    """Members of a residual clique are told apart only by what cancels in the inner space, and the other way round."""
    inner = draft.clique("p", 3)
    outer = draft.clique("r", 3)
    # Every member of the outer clique reads the inner one with its own numbers, which cancel, and vice versa.
    for member in outer:
        terms = draft.random(3, 3, 3)
        draft.state["p2.weight"][member, inner] = terms - terms.mean(0, keepdim=True)
    for member in inner:
        terms = draft.random(3, 3, 3)
        draft.state["p1.weight"][member, outer] = terms - terms.mean(0, keepdim=True)


def residual_null(draft: Draft) -> None:
    """A null channel over all sums, read with any weight."""
    null = draft.add("r", draft.silent("r"))
    for name in ("p1.weight", "q1.weight", "fc.weight"):
        draft.state[name][:, null] = draft.random(*draft.state[name][:, null].shape)


RESIDUAL: tuple[Adversary, ...] = (residual_copies, residual_cliques, dead_cycle, mutual_cliques, residual_null)


def gate_copies(draft: Draft) -> None:
    """Copies in the gated space and in the gate."""
    draft.copy("a", 0, 0.3, 0.7)
    draft.copy("a", 1, -2.0, 3.0)
    draft.copy("s", 0, 0.5, 0.5)


def gate_cliques(draft: Draft) -> None:
    draft.clique("a", 3)
    draft.clique("s", 3)


def gate_null(draft: Draft) -> None:
    """A channel of zeros behind any gate; a gate's hidden channel that is always zero."""
    rows = {name: 0.0 for name in draft.silent("a") if not name.startswith("s2")}
    null = draft.add("a", rows)
    for name in ("s1.weight", "b.weight"):
        draft.state[name][:, null] = draft.random(*draft.state[name][:, null].shape)
    hidden = draft.add("s", {"s1.weight": 0.0, "s1.bias": -2.0})
    draft.state["s2.weight"][:, hidden] = draft.random(*draft.state["s2.weight"][:, hidden].shape)


def gate_constants(draft: Draft) -> None:
    """A constant in the gate's hidden space, taken off in the gate's bias."""
    column = draft.random(draft.width("a"), 1, 1)
    draft.add("s", {"s1.weight": 0.0, "s1.bias": 1.5}, {"s2.weight": column})
    draft.state["s2.bias"] -= 1.5 * column[:, 0, 0]


GATED: tuple[Adversary, ...] = (gate_copies, gate_cliques, gate_null, gate_constants)


def undo(model: Small, adversary: Adversary, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, nn.Module]:
    draft = Draft(model)
    adversary(draft)
    attacked = draft.build().to(dtype)
    given = example(dtype)
    exact = 1e-9 if dtype == torch.float64 else 1e-2
    expected = outputs(model, example())
    assert relative_error(outputs(attacked, given).double(), expected) < exact, "the test's own attack is wrong"
    result = recover(attacked, given)
    assert relative_error(outputs(result.model, given).double(), outputs(attacked, given).double()) < exact
    return result.model, model


def shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


CASES = [
    *((Chain, adversary) for adversary in CHAIN),
    *((Residual, adversary) for adversary in RESIDUAL),
    *((Gated, adversary) for adversary in GATED),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("kind", "adversary"), CASES, ids=[adversary.__name__ for _, adversary in CASES])
def test_undone(kind: type[Small], adversary: Adversary, dtype: torch.dtype) -> None:
    model = randomize(kind(), seed=3)
    assert isinstance(model, Small)
    recovered, clean = undo(model, adversary, dtype)
    assert shapes(recovered) == shapes(clean)


@pytest.mark.parametrize(
    ("kind", "adversaries"),
    [(Chain, CHAIN), (Residual, RESIDUAL), (Gated, GATED)],
    ids=["chain", "residual", "gated"],
)
def test_undone_together(kind: type[Small], adversaries: tuple[Adversary, ...]) -> None:
    model = randomize(kind(), seed=4)
    assert isinstance(model, Small)

    def all_of_them(draft: Draft) -> None:
        for adversary in adversaries:
            if adversary is not wild_shares_everywhere:
                adversary(draft)

    recovered, clean = undo(model, all_of_them)
    assert shapes(recovered) == shapes(clean)


def test_the_harness_sees_a_wrong_attack() -> None:
    model = randomize(Chain(), seed=3)
    assert isinstance(model, Small)

    def wrong(draft: Draft) -> None:
        draft.copy("a", 0, 1.0, 0.1)

    with pytest.raises(AssertionError, match="own attack is wrong"):
        undo(model, wrong)


def test_shares_of_a_million() -> None:
    """More than the room for noise allows: the check finds it, and the strict attempt undoes it."""
    model = randomize(Chain(), seed=3)
    assert isinstance(model, Small)

    def shares(draft: Draft) -> None:
        for channel in range(6):
            draft.copy("a", channel, 1e6, 1 - 1e6)

    recovered, clean = undo(model, shares)
    assert shapes(recovered) == shapes(clean)


def test_a_constant_hidden_in_large_numbers() -> None:
    model = randomize(Chain(), seed=3)
    assert isinstance(model, Small)

    def hidden(draft: Draft) -> None:
        column = draft.random(draft.width("b"), 1, 1)
        rows = {**draft.silent("a"), "a.bias": 1e5, "na.running_mean": 1e5, "na.weight": 1.0, "na.bias": 0.7}
        draft.add("a", rows, {"b.weight": column})
        draft.state["b.bias"] -= column[:, 0, 0] * 0.7

    recovered, clean = undo(model, hidden)
    assert shapes(recovered) == shapes(clean)


def test_a_constant_before_zero_padding_stays() -> None:
    """At a padded border a constant is not constant, so no bias can take it up."""
    model = randomize(Chain(), seed=3)
    assert isinstance(model, Small)
    draft = Draft(model)
    draft.add("b", {**draft.silent("b"), "nb.bias": 0.5}, {"c.weight": draft.random(4, 3, 3)})
    changed = draft.build()
    result = recover(changed, example())
    assert not result.report.changed


def test_an_invertible_map_of_a_linear_bottleneck_does_no_harm() -> None:
    """Where no nonlinearity stands between two layers, any basis will do: nothing is redundant, nothing may break."""

    def build(width: int) -> nn.Module:
        parts = (nn.Linear(9, 12), nn.ReLU(), nn.Linear(12, width), nn.Linear(width, 12), nn.ReLU(), nn.Linear(12, 3))
        return randomize(nn.Sequential(*parts))

    net, wide = build(4), build(6)
    given = torch.randn(5, 9, dtype=torch.float64)
    mix = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    state = net.state_dict()
    state["3.weight"] = state["3.weight"] @ torch.linalg.pinv(mix)
    state["2.weight"], state["2.bias"] = mix @ state["2.weight"], mix @ state["2.bias"]
    wide.load_state_dict(state)
    result = recover(wide, given)
    assert relative_error(outputs(result.model, given), outputs(net, given)) < 1e-9


def test_a_channel_that_each_reader_switches_off() -> None:
    """After a concatenation every reader has a norm of its own, and each of them hides the channel."""

    class Dense(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.a, self.n1, self.b = nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.Conv2d(width, 4, 1)
            self.n2, self.c, self.fc = nn.BatchNorm2d(width + 4), nn.Conv2d(width + 4, 5, 1), nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.a(x)
            x = torch.cat([x, self.b(self.n1(x).relu())], 1)
            result: Tensor = self.fc(self.c(self.n2(x).relu()).relu().mean((2, 3)))
            return result

    wide = Dense(7)
    randomize(wide)
    with torch.no_grad():
        wide.n1.weight[2], wide.n1.bias[2] = 0, -0.3
        wide.n2.weight[2], wide.n2.bias[2] = 0, -0.1
        for norm in (wide.n1, wide.n2):
            assert norm.running_mean is not None
            norm.running_mean[2] = 3.0
    result = recover(wide, example())
    assert result.model.get_parameter("a.weight").shape[0] == 6
    assert relative_error(outputs(result.model, example()), outputs(wide, example())) < 1e-9
