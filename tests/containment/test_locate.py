"""The owner's network is found in whatever was built around it, and is not found in a stranger."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import canon
from canon.errors import CanonError
from canon.rewrite import fold_norms
from tests import networks
from tests.containment.disguises import CHANGES, DISGUISES, chain, images, relative_noise, weak
from tests.verify.small import digits, example, tiny, train

PRIMITIVES = ("nso_zero", "nso_clique", "nso_split")
CASES = (*networks.ACTIVATIONS, *networks.LAYERS, *networks.FUNCTIONS)


def disguised(
    net: nn.Module, inputs: Tensor, ops: str | tuple[str, ...] = "mix-opseq", ratio: float = 0.2
) -> nn.Module:
    return canon.attack(net, inputs, ops, ratio=ratio, seed=3).model


def state(net: nn.Module | None) -> Mapping[str, Tensor]:
    assert net is not None
    return net.state_dict()


def equal(first: nn.Module | None, second: nn.Module | None) -> bool:
    mine, yours = state(first), state(second)
    return mine.keys() == yours.keys() and all(torch.equal(mine[name], yours[name]) for name in mine)


# -- laws ------------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    case=st.sampled_from(CASES),
    ops=st.lists(st.sampled_from(PRIMITIVES), min_size=1, max_size=3),
    ratio=st.sampled_from([0.2, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
def test_every_channel_is_found_and_the_extracted_model_computes_the_same(
    case: networks.Case, ops: list[str], ratio: float, seed: int
) -> None:
    torch.manual_seed(seed)
    net, inputs = case.build().double().eval(), case.example()
    suspect = canon.attack(net, inputs, ops, ratio=ratio, seed=seed).model
    found = canon.locate(suspect, net, inputs)
    assert found.missing == 0
    assert found.agreement is not None
    assert found.agreement.difference < 1e-6
    assert found.model is not None
    assert {name: t.shape for name, t in state(found.model).items()} == {n: t.shape for n, t in state(net).items()}


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), noise=st.sampled_from([1e-6, 1e-3, 0.05]))
def test_small_noise_after_the_disguise_hides_nothing(seed: int, noise: float) -> None:
    net, inputs = chain(seed), images()
    suspect = relative_noise(canon.attack(net, inputs, "mix-opseq", ratio=0.5, seed=seed).model, noise, seed)
    found = canon.locate(suspect, net, inputs)
    assert found.coverage == 1
    assert found.worst is not None
    assert found.worst < 6 * noise
    assert found.answer == ("contained" if noise < 1e-4 else "derived")


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_a_stranger_has_nothing_of_it(seed: int) -> None:
    found = canon.locate(chain(seed), chain(seed + 1), images())
    assert found.answer == "unrelated"
    assert found.deep <= 0.01


# -- copies and order ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("change", [None, 0.05])
def test_the_extracted_model_of_a_plain_copy_is_that_copy(by_key: bool, change: float | None) -> None:
    net = tiny()
    suspect = copy.deepcopy(net) if change is None else relative_noise(net, change)
    found = canon.locate(suspect, canon.register(net, example()) if by_key else net, example())
    assert equal(found.model, suspect)
    assert found.answer == ("contained" if change is None else "derived")


def test_a_shuffled_copy_comes_back_bit_for_bit() -> None:
    net = tiny()
    suspect = canon.attack(net, example(), ["nso_zero"], ratio=0.2, seed=1, scale=False).model
    assert equal(canon.locate(suspect, net, example()).model, net)


def test_nothing_is_changed() -> None:
    net, suspect = tiny(), disguised(tiny(), example())
    before = copy.deepcopy(suspect)
    canon.locate(suspect, net, example())
    assert equal(net, tiny())
    assert equal(suspect, before)


def test_numbers_planted_in_the_reference_do_not_arrive() -> None:
    """The extracted model is made of the suspect's numbers only."""
    net = tiny()
    suspect = disguised(net, example())
    marked = copy.deepcopy(net)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        weight = marked.get_parameter("conv3.weight")
        weight.add_(1e-3 * torch.randn(weight.shape, generator=generator))
    found = canon.locate(suspect, marked, example())
    assert found.model is not None
    # Scales come from the reference, and with them what the plant does to a row's length; its direction does not.
    rows, own, lent = (
        nn.functional.normalize(each.get_parameter("conv3.weight").detach().double().flatten(1), dim=1)
        for each in (found.model, net, marked)
    )
    assert float((rows - own).norm(dim=1).max()) < 1e-6
    assert float((lent - own).norm(dim=1).min()) > 1e-3


def test_a_channel_that_is_not_there_is_zero() -> None:
    net, inputs = chain(), images()
    suspect = copy.deepcopy(net)
    with torch.no_grad():
        suspect.get_parameter("2.weight")[5] = torch.randn(24, 3, 3, dtype=torch.float64)
        suspect.get_parameter("2.bias")[5] = 3.0
    found = canon.locate(suspect, net, inputs)
    assert found.missing == 1
    assert found.answer == "derived"
    assert found.model is not None
    extracted = state(found.model)
    assert not extracted["2.weight"][5].any()
    assert not extracted["2.bias"][5].any()
    assert not extracted["4.weight"][:, 5].any()


# -- thieves ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("name", DISGUISES)
def test_dummies_that_no_weight_gives_away(name: str, by_key: bool) -> None:
    net, inputs = chain(), images()
    suspect = canon.attack(DISGUISES[name](net), inputs, "mix-opseq", ratio=0.2, seed=4).model
    found = canon.locate(suspect, canon.register(net, inputs) if by_key else net, inputs)
    assert found.answer == "contained"
    assert found.coverage == 1
    assert equal_widths(found.model, net)


def equal_widths(first: nn.Module | None, second: nn.Module) -> bool:
    return [t.shape for t in state(first).values()] == [t.shape for t in state(second).values()]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("ops", ["mix-opseq", *PRIMITIVES])
def test_changes_after_a_disguise(ops: str, change: str) -> None:
    net, inputs = chain(), images()
    for ratio in (0.2, 0.5):
        suspect = CHANGES[change](canon.attack(net, inputs, [ops], ratio=ratio, seed=2).model)
        found = canon.locate(suspect, net, inputs)
        assert found.coverage >= 0.99
        assert found.answer in ("derived", "contained")


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("ops", ["mix-opseq", *PRIMITIVES])
def test_the_weakest_channels_do_not_drown(ops: str, by_key: bool) -> None:
    net, inputs = weak(), images()
    for ratio in (0.2, 0.5):
        suspect = canon.attack(net, inputs, [ops], ratio=ratio, seed=5).model
        found = canon.locate(suspect, canon.register(net, inputs) if by_key else net, inputs)
        assert found.answer == "contained"


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32])
def test_another_precision(kind: torch.dtype) -> None:
    net, inputs = chain(), images()
    found = canon.locate(disguised(net, inputs).to(kind), net, inputs)
    assert found.coverage == 1
    assert found.answer == "contained"
    assert state(found.model)["0.weight"].dtype == kind


def test_a_negative_scale_where_only_linear_layers_read() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 20, 1), nn.BatchNorm2d(20), nn.Conv2d(20, 16, 3),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    ).double().eval()  # fmt: skip
    suspect = copy.deepcopy(net)
    with torch.no_grad():
        suspect.get_parameter("3.weight")[::2] *= -1
        suspect.get_parameter("3.bias")[::2] *= -1
        suspect.get_parameter("4.weight")[:, ::2] *= -1
    assert torch.allclose(net(images()), suspect(images()))
    found = canon.locate(disguised(suspect, images()), net, images())
    assert found.answer == "contained"


def test_folded_norms_and_grown_kernels() -> None:
    net = tiny()
    folded = fold_norms(canon.attack(net, example(), "mix-opseq", seed=1).model, example()).model
    found = canon.locate(folded, net, example())
    assert found.coverage == 1
    assert any("norms" in note for note in found.notes)
    grown = canon.attack(net, example(), "mix-opseq", seed=1, expand_kernels=True).model
    found = canon.locate(grown, net, example())
    assert found.answer == "contained"
    assert any("kernels" in note for note in found.notes)


def test_a_head_for_another_task() -> None:
    net = tiny()
    suspect = copy.deepcopy(net)
    suspect.fc = nn.Linear(32, 7).eval()
    for reference in (net, canon.register(net, example())):
        found = canon.locate(disguised(suspect, example()), reference, example())
        assert found.answer == "derived"
        assert found.missing == 10
        assert any("another number of outputs" in note for note in found.notes)


# -- other networks and wrong input ------------------------------------------------------------------------------------


def test_another_depth_is_not_found() -> None:
    found = canon.locate(chain(widths=(24, 32)), chain(), images())
    assert found.answer == "not decided"
    assert "layer" in found.reason
    assert found.coverage < 0.1


def test_strangers_of_another_type_or_with_another_head() -> None:
    net = chain().float()
    example = images().float()
    head = nn.Sequential(*list(chain(1).float())[:-1], nn.Linear(40, 3)).eval()
    for stranger in (chain(1), head):
        for reference in (net, canon.register(net, example)):
            assert canon.locate(stranger, reference, example).answer == "unrelated"


class NoLayers(nn.Module):
    """Nothing that could be anybody's."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))


def test_networks_without_layers() -> None:
    for suspect, owner in ((chain(), NoLayers().eval()), (NoLayers().eval(), chain())):
        for reference in (owner, canon.register(owner, images())):
            assert canon.locate(suspect, reference, images()).answer == "not decided"


def test_the_owners_program_does_not_fit_the_suspect() -> None:
    """A norm's size is written in the program; another width stands there in the suspect."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.gate, self.up = nn.Linear(64, 48), nn.Linear(48, 96), nn.Linear(48, 96)
            self.down, self.norm, self.last = nn.Linear(96, 48), nn.RMSNorm(48), nn.Linear(48, 10)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.first(x))
            x = x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))
            result: Tensor = self.last(self.norm(x))
            return result

    torch.manual_seed(0)
    owner = Gated().eval()
    torch.manual_seed(0)
    suspect = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10)).eval()
    with torch.no_grad():
        suspect.get_parameter("0.weight")[:48] = owner.first.weight
    for reference in (owner, canon.register(owner, torch.randn(2, 64))):
        found = canon.locate(suspect, reference, torch.randn(2, 64))
        assert found.answer != "contained"
        assert not found.refitted


def test_another_wiring_is_not_found() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.c(torch.relu(self.b(torch.relu(self.a(x)))))
            return result

    class Residual(Plain):
        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.a(x))
            result: Tensor = self.c(x + torch.relu(self.b(x)))
            return result

    found = canon.locate(Residual().eval(), Plain().eval(), torch.randn(1, 3, 4, 4))
    assert found.answer in ("unrelated", "not decided")
    assert found.coverage < 0.1


def test_numbers_that_are_not_finite_are_refused() -> None:
    suspect = chain()
    with torch.no_grad():
        suspect.get_parameter("2.weight")[0, 0, 0, 0] = float("nan")
    with pytest.raises(CanonError):
        canon.locate(suspect, chain(), images())


# -- training --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor]:
    return digits()


@pytest.fixture(scope="module")
def trained(data: tuple[Tensor, Tensor]) -> nn.Module:
    return train(tiny(0, 24), *data, seed=0, steps=150)


def test_fine_tuning_after_a_disguise(trained: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    suspect = train(disguised(trained, example()), *data, seed=3, steps=40, rate=0.01)
    for reference in (trained, canon.register(trained, example(), robust=True)):
        found = canon.locate(suspect, reference, example())
        assert found.coverage >= 0.95
        assert found.answer == "derived"
        assert "ancestor" in found.reason


def test_a_stranger_that_was_trained_on_the_same_data(trained: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    stranger = train(tiny(7, 24), *data, seed=7, steps=150)
    for reference in (trained, canon.register(trained, example())):
        found = canon.locate(stranger, reference, example())
        assert found.answer == "unrelated"
        assert found.deep <= 0.01


def test_an_innocent_of_the_same_ancestor(trained: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    pictures, labels = data
    half = len(pictures) // 2
    owner = train(trained, pictures[:half], labels[:half], seed=1, steps=60, rate=0.02)
    innocent = train(trained, pictures[half:], labels[half:], seed=2, steps=60, rate=0.02)
    thief = disguised(train(owner, pictures, labels, seed=3, steps=10, rate=0.01), example())
    found = canon.locate(innocent, owner, example(), ancestors=(trained,))
    assert found.answer == "not decided"
    assert "ancestor" in found.reason
    found = canon.locate(thief, owner, example(), ancestors=(trained,))
    assert found.answer == "derived"
    assert found.ancestors[0].cosine > 0.95
    # The owner's model as it is needs no ancestor to be found out, and one takes nothing from it.
    assert canon.locate(owner, owner, example(), ancestors=(trained,)).answer == "contained"
