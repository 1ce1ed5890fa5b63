"""Controls: honest keys pass, keys that read anywhere do not, and p-values say what is true."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, kstest
from torch import nn

from canon import watermarks
from canon.errors import WatermarkError
from canon.watermarks import Controls, Message, Reader, riga21
from canon.watermarks.controls import COUNT, KINDS, Kind, Recorder, altered
from canon.watermarks.layers import layer_weight
from canon_benchmarks.measures.wrong import drawn_keys, figures, small_data, trained_keys
from tests.benchmarks.measured import committed
from tests.liars.victims import images, victim


def controls_of(matched: np.ndarray, total: int, alone: bool = True) -> Controls:
    kinds = tuple(KINDS[index % 3] for index in range(len(matched)))
    return Controls("any", 0, kinds, tuple(map(int, matched)), total, alone)


def test_fair_coins_are_not_void() -> None:
    source = np.random.default_rng(0)
    for total in (8, 64, 128, 598):
        rows = source.binomial(total, 0.5, (200, COUNT))
        assert sum(controls_of(row, total).void for row in rows) == 0


def test_controls_that_all_say_the_same_are_not_void_by_chance() -> None:
    """The worst that an honest key can show: one draw, a hundred times."""
    source = np.random.default_rng(0)
    rows = source.binomial(128, 0.5, 2_000)[:, None].repeat(12, axis=1)
    assert sum(controls_of(row, 128).void for row in rows) == 0


@pytest.mark.parametrize("copies", [4, 16, 64])
def test_bits_that_hang_together_are_void(copies: int) -> None:
    row = copies * np.random.default_rng(0).binomial(128 // copies, 0.5, COUNT)
    found = controls_of(row, 128)
    assert found.void
    assert 0.5 * copies < found.dispersion < 2 * copies
    assert found.p_value(128) >= 0.5 ** (2 * 128 / copies)


def test_a_little_hanging_together_is_not_void_and_counted() -> None:
    row = np.random.default_rng(0).binomial(128, np.random.default_rng(1).beta(250, 250, COUNT))
    found = controls_of(row, 128)
    assert not found.void
    assert found.dispersion > 1.05
    assert found.p_value(110) > float(binom.sf(109, 128, 0.5))


@pytest.mark.parametrize("share", [0.75, 0.9, 1.0])
def test_keys_that_lean_are_void(share: float) -> None:
    row = np.random.default_rng(0).binomial(128, share, COUNT)
    found = controls_of(row, 128)
    assert found.void
    assert found.p_value(round(128 * share)) > 0.2, "no better than the controls"


def test_one_kind_is_enough() -> None:
    row = np.random.default_rng(0).binomial(128, 0.5, COUNT)
    row[1::3] = 128
    row[2::3] = 0
    assert controls_of(row, 128).void


def test_a_scheme_that_cannot_carry_alone_says_a_share_of_controls() -> None:
    found = controls_of(np.random.default_rng(0).binomial(64, 0.5, COUNT), 64, alone=False)
    assert found.p_value(64) == 1 / (1 + COUNT)
    assert found.p_value(0) == 1.0
    assert controls_of(np.full(COUNT, 60), 64, alone=False).void


@given(st.lists(st.integers(0, 64), min_size=6, max_size=40), st.integers(0, 64))
def test_controls_never_make_a_p_value_smaller(row: list[int], matched: int) -> None:
    for alone in (True, False):
        found = controls_of(np.array(row), 64, alone)
        assert 0 < found.p_value(matched) <= 1
        assert found.p_value(matched) >= float(binom.sf(matched - 1, 64, 0.5)) * (1 - 1e-9)
        assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["void"] == found.void


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(WatermarkError, match="cannot have 65 of 64"):
        controls_of(np.full(12, 65), 64)
    with pytest.raises(WatermarkError, match="two controls of each kind"):
        controls_of(np.full(4, 3), 64)
    with pytest.raises(WatermarkError, match="cannot be right"):
        controls_of(np.full(12, 3), 64).p_value(65)
    key = watermarks.get("uchida17").draw_key(victim(), images())
    with pytest.raises(WatermarkError, match="too few"):
        watermarks.get("uchida17").controls(victim(), key, count=5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(40,), (30, 50), (24, 32, 3, 3), (24, 3, 3, 3)])
def test_a_control_has_the_same_moments_and_zeros(kind: Kind, shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(shape, generator=generator) * 3 + 1
    value[:4] = 0
    source = Recorder(Reader(victim()), generator)
    found = altered(value, kind, source, seed=1)
    assert found.shape == value.shape
    assert int((found == 0).sum()) == int((value == 0).sum())
    assert float((found - value).abs().mean()) > 0.5, "hardly anything stays where it was"
    assert abs(float(found.square().mean() / value.square().mean()) - 1) < 0.7


@pytest.mark.parametrize("name", watermarks.names())
def test_controls_can_be_drawn_again_and_touch_nothing(name: str) -> None:
    scheme, model = watermarks.get(name), victim(1)
    before = copy.deepcopy(model.state_dict())
    key = scheme.draw_key(model, images(), message=Message.random(3, 64), seed=3)
    first = scheme.controls(model, key, 12, seed=5)
    assert first == scheme.controls(model, key, 12, seed=5)
    assert set(first.kinds) == set(scheme.unmarked)
    assert scheme.controls(model, key, 12).seed != scheme.controls(model, key, 12).seed, "fresh where none is given"
    assert not first.void
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("name", ["ipr_gan", "deepsigns"])
def test_p_values_of_wrong_keys_are_not_too_small(name: str) -> None:
    """The quick version of `canon bench run wrong_keys`."""
    torch.set_num_threads(1)
    rows = list(drawn_keys(watermarks.get(name), small_data(), 50))
    assert kstest([row[1] for row in rows], "uniform", alternative="greater").pvalue > 1e-4
    assert not any(row[2] for row in rows)


@pytest.mark.slow
def test_p_values_of_trained_keys_are_not_too_small() -> None:
    torch.set_num_threads(1)
    found = figures(list(trained_keys(watermarks.get("riga21"), small_data(), 30)))
    assert found["test_p_value"] > 1e-4


def test_the_test_of_p_values_can_fail() -> None:
    values = np.random.default_rng(0).random(400) ** 1.7
    assert figures([(float(value), float(value), False) for value in values])["test_p_value"] < 1e-4


def test_published_p_values_are_good() -> None:
    found = {(r.case.scheme, r.case.keys): r.metrics for r in committed("wrong_keys")}
    trained = [(name, "trained") for name in watermarks.names() if not watermarks.get(name).carries_alone]
    assert set(found) == {*((name, "drawn") for name in watermarks.names()), *trained}
    for (_, kind), row in found.items():
        assert row["keys"] >= (2_000 if kind == "drawn" else 200)
        assert row["test_p_value"] > 0.001
        assert row["share_at_most"]["1e-06"] == 0
        assert row["void"] <= 0.001 * row["keys"]


def centred(with_moved: bool, monkeypatch: pytest.MonkeyPatch) -> Controls:
    """Controls of a riga21 key whose layers see one position alone: training leaves nothing but kernels' centres."""
    if not with_moved:
        monkeypatch.setattr(riga21.Riga, "_moved", lambda self, vector: vector.new_zeros(0, len(vector)))
    scheme = watermarks.get("riga21")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 48, 3), nn.Conv2d(48, 48, 3, padding=1), nn.Conv2d(48, 48, 3, padding=1))
        target = scheme._target(model, images(), Message.random(0, 32), 0, ["1", "2"])
        embedding = scheme.prepare(target)
        weights = [layer_weight(target.model, layer) for layer in target.layers]
        centre = torch.zeros(3, 3)
        centre[1, 1] = 1
        optimizer = torch.optim.SGD(weights, 0.5, momentum=0.9)
        for _ in range(20):
            embedding.before_epoch(target.model)
            for _ in range(5):
                optimizer.zero_grad()
                embedding.penalty(target.model).backward()
                optimizer.step()
            with torch.no_grad():
                for weight in weights:
                    weight.mul_(0.85 + 0.15 * centre).add_(0.02 * centre)
        key = scheme._key(target, embedding)
        assert scheme.extract(target.model, key).matched == 32
        return scheme.controls(target.model, key, seed=1)


def test_an_honest_key_of_riga21_hears_the_order_of_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Permuted controls are fair because the extractor was shown other orders and told to be silent."""
    assert centred(False, monkeypatch).void, "else it knows its model by what all channels have in common"
    monkeypatch.undo()
    assert not centred(True, monkeypatch).void
