"""Steps afterwards: what they do to numbers, that they are told exactly, and that one seed gives one result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from canon.attacks import AttackLog, attack, replay
from canon.attacks.after import BFloat16, Finetune, Float16, Noise, Prune, Round, names, parse
from canon.errors import AttackError
from tests.preservation import randomize


def network() -> nn.Module:
    layers = (nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return randomize(nn.Sequential(*layers, nn.Linear(12, 3)))


EXAMPLE = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def changed(step: Any, seed: int = 0) -> list[tuple[str, Tensor, Tensor]]:
    """Every tensor before and after a step, which must leave its argument alone."""
    model = network()
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    later = step.apply(model, torch.Generator().manual_seed(seed)).state_dict()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items())
    return [(name, tensor, later[name]) for name, tensor in kept.items()]


def test_relative_noise_is_relative_to_each_weight() -> None:
    ratios = []
    for name, before, after in changed(Noise(relative=0.2)):
        assert before.dtype == after.dtype
        if "running" in name or "tracked" in name:
            assert torch.equal(before, after)
        else:
            ratios.append(((after - before) / before).flatten())
    ratio = torch.cat(ratios)
    assert float(ratio.std()) == pytest.approx(0.2, rel=0.15)


def test_absolute_noise_is_relative_to_the_spread_of_the_tensor() -> None:
    for name, before, after in changed(Noise(absolute=0.02)):
        if name == "0.weight":
            assert float((after - before).std() / before.std()) == pytest.approx(0.02, rel=0.15)


def test_pruning_takes_the_smallest() -> None:
    for _, before, after in changed(Prune(0.3)):
        if before.ndim < 2:
            assert torch.equal(before, after)
        else:
            gone = after == 0
            assert int(gone.sum()) == int(0.3 * before.numel())
            assert float(before[gone].abs().max()) < float(before[~gone].abs().min())
            assert torch.equal(before[~gone], after[~gone])


@pytest.mark.parametrize("bits", [16, 12, 8, 4])
@pytest.mark.parametrize("per", ["tensor", "channel"])
def test_rounding_leaves_so_many_levels(bits: int, per: str) -> None:
    for _, before, after in changed(Round(bits, per)):
        if before.ndim < 2:
            assert torch.equal(before, after)
            continue
        parts = [(before, after)] if per == "tensor" else list(zip(before, after, strict=True))
        for given, found in parts:
            step = given.abs().max() / (2 ** (bits - 1) - 1)
            assert float((found - given).abs().max()) <= float(step) * (0.5 + 1e-9)
            assert found.unique().numel() <= 2**bits - 1
            assert bool(((found / step).round() - found / step).abs().max() < 1e-6)


@pytest.mark.parametrize(("step", "dtype"), [(Float16(), torch.float16), (BFloat16(), torch.bfloat16)])
def test_casting_keeps_the_type_and_rounds(step: Any, dtype: torch.dtype) -> None:
    for name, before, after in changed(step):
        assert before.dtype == after.dtype
        if name == "0.weight":
            assert torch.equal(after, before.to(dtype).to(before.dtype))
            assert not torch.equal(after, before)


def test_casting_keeps_large_numbers_finite() -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.fill_(1e6)
    assert bool(Float16().apply(model, torch.Generator()).state_dict()["weight"].isfinite().all())


def test_fine_tuning_learns_and_repeats() -> None:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(60) % 3
    images = torch.randn(60, 3, 6, 6, generator=generator) + labels.view(-1, 1, 1, 1)
    step = Finetune(epochs=5, rate=0.05, batch=16, data=(images, labels))
    model = network()
    tuned = step.apply(model, torch.Generator().manual_seed(0))
    assert not tuned.training

    def loss(net: nn.Module) -> float:
        with torch.no_grad():
            return float(nn.functional.cross_entropy(net(images.double()), labels))

    assert loss(tuned) < 0.7 * loss(model)
    state = torch.get_rng_state()
    again = step.apply(model, torch.Generator().manual_seed(0))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(tuned.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), network().parameters(), strict=True))


def test_fine_tuning_says_what_it_needs() -> None:
    with pytest.raises(AttackError, match=r"needs data.*Finetune\(data="):
        attack(network(), EXAMPLE, ["nso_zero"], after=["finetune:dataset=digits"])
    images, labels = torch.randn(4, 3, 6, 6), torch.tensor([0, 1, 2, 7])
    with pytest.raises(AttackError, match="as many classes"):
        attack(network(), EXAMPLE, ["nso_zero"], after=[Finetune(data=(images, labels))])
    with pytest.raises(AttackError, match="not finite"):
        attack(network(), EXAMPLE, ["nso_zero"], after=[Finetune(rate=1e300, epochs=9, data=(images, labels % 3))])


def test_the_log_says_what_was_done_and_how_far_outputs_moved() -> None:
    steps = ["noise:relative=0.1", "prune=0.2", "round:bits=6,per=channel", "bfloat16"]
    done = attack(network(), EXAMPLE, ["nso_clique"], after=steps, seed=3)
    assert [step.step for step in done.log.after] == [
        "noise:relative=0.1", "prune:share=0.2", "round:bits=6,per=channel", "bfloat16",
    ]  # fmt: skip
    assert all(1e-5 < step.change < 1 for step in done.log.after)
    assert done.log.change is None, "the injection itself keeps the function"
    read = AttackLog.from_json(done.log.to_json())
    assert read == done.log
    again = replay(network(), EXAMPLE, read)
    assert all(torch.equal(a, b) for a, b in zip(done.model.parameters(), again.model.parameters(), strict=True))
    other = attack(network(), EXAMPLE, ["nso_clique"], after=steps[:1], seed=4)
    assert not all(torch.equal(a, b) for a, b in zip(done.model.parameters(), other.model.parameters(), strict=True))


def test_stronger_noise_moves_outputs_further() -> None:
    changes = [
        attack(network(), EXAMPLE, ["nso_zero"], after=[f"noise:relative={strength}"]).log.after[0].change
        for strength in (0.001, 0.01, 0.1)
    ]
    assert changes[0] < changes[1] < changes[2]


@pytest.mark.parametrize("name", names())
def test_a_spec_gives_the_same_step(name: str) -> None:
    step = parse({"noise": "noise=0.3", "finetune": "finetune:epochs=3"}.get(name, name))
    assert parse(step.spec) == step


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("shake", "no step 'shake'.*noise, prune, round"),
        ("", "no step ''"),
        ("noise", "noise needs a strength"),
        ("noise:relative=-1", "noise needs a strength"),
        ("noise:relative=nan", "noise needs a strength"),
        ("noise:size=1", "'size' is no setting of the step 'noise'.*relative, absolute"),
        ("noise=0.1:relative=0.2", "'relative' is given twice"),
        ("prune=1.0", r"must be in \(0, 1\)"),
        ("prune=lots", "is a float, got 'lots'"),
        ("round=1", "2 to 16 bits"),
        ("round:per=row", "per 'tensor' or 'channel'"),
        ("float16=3", "is no setting of the step 'float16'"),
        ("finetune:epochs=0", "at least one epoch"),
        ("finetune:rate=0", "rate and momentum"),
        ("finetune:data=x", "'data' is no setting"),
    ],
)
def test_wrong_texts_are_refused(text: str, words: str) -> None:
    with pytest.raises(AttackError, match=words):
        parse(text)
    with pytest.raises(AttackError):
        attack(network(), EXAMPLE, ["nso_zero"], after=[text])
