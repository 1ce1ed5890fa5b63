"""The whole way: a marked model, attacked, judged; and everything that must never be proved."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from scipy.stats import binom, kstest
from torch import Tensor, nn

from canon import watermarks, zoo
from canon.api import JudgeOptions, certify, check_evidence, judge
from canon.attacks import attack
from canon.errors import VerificationError
from canon.verify import LayoutKey, align, register
from canon.verify.mark import Mark
from canon.verify.verdict import Inconclusive, Matches, Proved, Refuted
from canon.watermarks import Dataset, Key, Message, TrainOptions
from tests.verify.small import digits, example, tiny, train

QUICK = TrainOptions(epochs=40, batch_size=32, cooldown=1, accuracy_goal=0.8)
BITS = 48


@dataclass(frozen=True, eq=False)
class Owner:
    """A marked model with its keys, and the model after an attack."""

    model: nn.Module
    key: Key
    layout: LayoutKey
    attacked: nn.Module


def data() -> Dataset:
    return zoo.dataset("digits").limited(480, 120).resized(8)


def marked(scheme: str, seed: int) -> Owner:
    message = Message.random(seed, BITS)
    result = watermarks.get(scheme).embed(tiny(seed), data(), message=message, seed=seed, options=QUICK)
    assert result.extraction.matched == BITS, "the mark is in"
    hidden = attack(result.model, example(), "mix-opseq", ratio=0.3, seed=seed).model
    return Owner(result.model, result.key, register(result.model, example()), hidden)


@pytest.fixture(scope="module")
def owner() -> Owner:
    return marked("uchida17", 0)


@pytest.fixture(scope="module")
def signed() -> Owner:
    """A mark in the signs of norm weights: alignment must not lend it to others."""
    return marked("ipr_gan", 1)


# -- what holds ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("with_mark", [False, True])
def test_the_attacked_model_matches(owner: Owner, by_key: bool, with_mark: bool) -> None:
    found = judge(
        owner.attacked,
        example(),
        reference=None if by_key else owner.model,
        layout_key=owner.layout if by_key else None,
        watermark_key=owner.key if with_mark else None,
    )
    assert isinstance(found.verdict, Matches), found.verdict
    assert "can be made afterwards" in found.verdict.reason
    assert found.answers.network.answer == "equal"
    assert found.answers.network.compared == 1.0
    assert found.answers.function.answer == "agree"
    assert found.answers.priority.answer == "nothing shown"
    check_evidence(found.evidence)
    assert found.aligned is not None
    if with_mark:
        assert found.answers.mark.answer == "read"
        assert found.mark == Mark("uchida17", BITS, BITS, 1.0, "aligned", ("conv1", "conv3"))
        assert found.evidence["watermark"]["binomial"] == pytest.approx(2.0**-BITS)
    else:
        assert found.answers.mark.answer == "no key"


def test_a_sign_mark_is_read_after_the_attack(signed: Owner) -> None:
    found = judge(signed.attacked, example(), layout_key=signed.layout, watermark_key=signed.key)
    assert isinstance(found.verdict, Matches), found.verdict


@pytest.mark.parametrize("by_key", [False, True])
def test_a_fine_tuned_copy_is_derived(owner: Owner, by_key: bool) -> None:
    tuned = train(owner.model, *digits(), seed=3, steps=20, rate=0.002)
    hidden = attack(tuned, example(), "nso_clique", ratio=0.3, seed=4).model
    anchor: dict[str, Any] = {"layout_key": owner.layout} if by_key else {"reference": owner.model}
    without = judge(hidden, example(), **anchor)
    assert without.answers.network.answer == "derived", without.answers.network
    assert "common ancestor" in without.answers.network.reason
    found = judge(hidden, example(), **anchor, watermark_key=owner.key)
    assert isinstance(found.verdict, Matches), found.verdict
    assert found.answers.mark.answer == "read"
    check_evidence(found.evidence)


def test_pruned_channels_of_the_owner_are_no_obstacle(owner: Owner) -> None:
    reference = copy.deepcopy(owner.model)
    with torch.no_grad():
        reference.get_parameter("conv3.weight")[4] = 0
        reference.get_buffer("norm3.running_mean")[4] = 0
        reference.get_parameter("norm3.bias")[4] = -0.5
    hidden = attack(reference, example(), ["nso_zero", "nso_clique"], ratio=0.3, seed=1).model
    found = judge(hidden, example(), reference=reference)
    assert found.answers.network.answer == "equal", found.answers.network


# -- what must never be proved ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def independent() -> list[nn.Module]:
    """Twenty networks of the same architecture, trained on the same data from other starts."""
    images, labels = digits()
    return [train(tiny(100 + seed), images, labels, seed=seed, steps=60) for seed in range(20)]


def test_independently_trained_models_are_not_believed(
    owner: Owner, signed: Owner, independent: list[nn.Module]
) -> None:
    images, labels = digits()
    right = (independent[0](images).argmax(1) == labels).float().mean()
    assert right > 0.8, "the networks learned the task"
    options, refuted = JudgeOptions(recover=False), 0
    for model in independent:
        for verdict in (
            judge(model, example(), reference=owner.model, options=options).verdict,
            judge(model, example(), layout_key=owner.layout, watermark_key=owner.key, options=options).verdict,
            judge(model, example(), reference=signed.model, watermark_key=signed.key, options=options).verdict,
        ):
            assert isinstance(verdict, Refuted | Inconclusive), verdict
            refuted += isinstance(verdict, Refuted)
    assert refuted >= 10, "where a layer has few channels, and they are alike, no more than not decided is said"


def test_alignment_alone_would_lend_a_sign_mark_to_strangers(signed: Owner, independent: list[nn.Module]) -> None:
    """Why a mark is read from an aligned model only where the order is forced."""
    scheme = watermarks.get("ipr_gan")
    lent = [scheme.extract(align(m, signed.model, example()).model, signed.key).matched for m in independent]
    plain = [scheme.extract(m, signed.key).matched for m in independent]
    assert sum(lent) > sum(plain) + 2 * len(independent)


def test_a_stranger_with_the_owners_first_layer_is_not_proved(signed: Owner, independent: list[nn.Module]) -> None:
    """Related in front, unrelated where the mark is: the mark must not be lent there either."""
    for model in independent[:5]:
        mixed = copy.deepcopy(model)
        state = {name: value for name, value in signed.model.state_dict().items() if "1." in name}
        mixed.load_state_dict(state, strict=False)
        for anchor in ({"reference": signed.model}, {"layout_key": signed.layout}):
            found = judge(mixed, example(), watermark_key=signed.key, **anchor)
            assert not isinstance(found.verdict, Proved | Matches), found.verdict
            assert found.mark is not None
            assert found.mark.read_from == "recovered"


def test_random_weights_and_attacked_strangers_are_not_believed(owner: Owner, independent: list[nn.Module]) -> None:
    strangers = [tiny(7), attack(independent[0], example(), "mix-opseq", ratio=0.3).model]
    strangers.append(train(independent[1], *digits(), seed=5, steps=20, rate=0.005))
    for model in strangers:
        found = judge(model, example(), reference=owner.model, watermark_key=owner.key)
        assert isinstance(found.verdict, Refuted | Inconclusive), found.verdict
        assert found.answers.network.answer in ("unrelated", "not decided")


def test_another_owners_reference_and_key_are_refuted(owner: Owner, signed: Owner) -> None:
    found = judge(owner.attacked, example(), reference=signed.model, watermark_key=signed.key)
    assert isinstance(found.verdict, Refuted), found.verdict
    found = judge(owner.attacked, example(), layout_key=signed.layout)
    assert isinstance(found.verdict, Refuted), found.verdict


def wrong_keys(model: nn.Module, key: Key, count: int) -> Tensor:
    """How many bits somebody else's keys read."""
    scheme, dataset = watermarks.get(key.scheme), data()
    found = []
    for seed in range(count):
        other = scheme.draw_key(model, dataset, message=Message.random(10_000 + seed, BITS), seed=20_000 + seed)
        found.append(scheme.extract(model, other).matched)
    return torch.tensor(found)


def test_wrong_keys_are_refuted_and_their_p_values_are_uniform(owner: Owner) -> None:
    """A discrete p-value cannot be uniform; spread over its step by an independent draw, it is, exactly."""
    aligned = align(judge(owner.attacked, example(), reference=owner.model).recovered, owner.model, example()).model
    matched = wrong_keys(aligned, owner.key, 1000).double().numpy()
    draw = torch.rand(1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    p_values = binom.sf(matched, BITS, 0.5) + draw * binom.pmf(matched, BITS, 0.5)
    assert kstest(p_values, "uniform").pvalue > 0.01
    assert binom.sf(matched - 1, BITS, 0.5).min() > 1e-6, "no wrong key proves anything"


def test_the_right_model_with_a_wrong_key_is_not_refuted(owner: Owner) -> None:
    scheme = watermarks.get("uchida17")
    other = scheme.draw_key(owner.model, data(), message=Message.random(5, BITS), seed=77)
    found = judge(owner.attacked, example(), reference=owner.model, watermark_key=other)
    assert isinstance(found.verdict, Inconclusive)
    assert found.answers.network.answer == "equal"
    assert found.answers.mark.answer == "unread"
    assert "the key's message is not in it" in found.verdict.reason


def test_a_short_message_proves_nothing(owner: Owner) -> None:
    scheme = watermarks.get("uchida17")
    short = scheme.draw_key(owner.model, data(), message=Message.random(5, 8), seed=77)
    found = judge(owner.attacked, example(), reference=owner.model, watermark_key=short)
    assert isinstance(found.verdict, Inconclusive)
    assert "8 bits are too few" in found.verdict.reason


def test_alignment_never_sees_the_message(owner: Owner) -> None:
    """The same order and scales, whatever key is asked for: the p-value rests on the message alone."""
    other = watermarks.get("uchida17").draw_key(owner.model, data(), message=Message.random(6, BITS), seed=78)
    results = [
        judge(owner.attacked, example(), reference=owner.model, watermark_key=key) for key in (owner.key, other, None)
    ]
    states = [found.aligned.state_dict() for found in results if found.aligned is not None]
    assert len(states) == 3
    for state in states[1:]:
        # The same but for rounding: recovery draws its sketches anew in every run.
        assert all(torch.allclose(state[name], tensor, rtol=1e-4, atol=1e-6) for name, tensor in states[0].items())


# -- usage -----------------------------------------------------------------------------------------------------------


def test_exactly_one_anchor_is_needed(owner: Owner) -> None:
    with pytest.raises(VerificationError, match="either a reference or a layout key"):
        judge(owner.attacked, example())
    with pytest.raises(VerificationError, match="either a reference or a layout key"):
        judge(owner.attacked, example(), reference=owner.model, layout_key=owner.layout)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_float_types_are_compared_at_the_coarser_precision(owner: Owner, dtype: torch.dtype) -> None:
    suspect = copy.deepcopy(owner.attacked).to(dtype)
    for anchor in ({"reference": owner.model}, {"layout_key": owner.layout}):
        found = judge(suspect, example(), **anchor, watermark_key=owner.key)
        assert isinstance(found.verdict, Matches), found.verdict
        coarser = "float32" if dtype == torch.float64 else str(dtype).removeprefix("torch.")
        assert found.evidence["precision"]["compared"] == coarser
        assert (coarser in found.answers.network.reason) is (coarser != "float32")
        check_evidence(found.evidence)


@pytest.mark.parametrize(
    "options", [JudgeOptions(tolerance=1e9), JudgeOptions(alpha=1.0), JudgeOptions(layers=("conv3",))]
)
def test_unusual_options_give_no_strong_word(owner: Owner, options: JudgeOptions) -> None:
    found = judge(owner.attacked, example(), reference=owner.model, watermark_key=owner.key, options=options)
    assert isinstance(found.verdict, Inconclusive)
    assert "non-standard options" in found.verdict.reason or found.answers.network.answer == "not decided"
    check_evidence(found.evidence)


def test_a_users_own_probes_count(owner: Owner) -> None:
    images, _ = digits()
    found = judge(owner.attacked, example(), reference=owner.model, probes={"digits": [images[:40]]})
    assert found.answers.function.probes == {"random": 16, "digits": 40}
    with pytest.raises(VerificationError, match="do not fit"):
        judge(owner.attacked, example(), reference=owner.model, probes={"digits": [images[:, :1]]})


def test_without_recovery_an_attacked_model_contains_the_owners(owner: Owner) -> None:
    found = judge(owner.attacked, example(), layout_key=owner.layout, options=JudgeOptions(recover=False))
    assert found.answers.network.answer == "contained", found.answers.network
    assert not certify(owner.attacked, owner.model, example(), canonical=False).passed
