"""No liar gets a strong word: keys made afterwards, skeleton keys, empty layout keys, loose options."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from torch import nn

from canon.api import JudgeOptions, check_evidence, judge
from canon.errors import CanonError, KeyFileError
from canon.verify import LayoutKey, register
from canon.verify.answers import Network
from canon.verify.layout import Step
from canon.verify.verdict import Matches, Proved, decide
from canon.watermarks import Key
from tests.liars.forgers import FORGERIES, SKELETONS, Forger
from tests.liars.networks import Language, replaced, seeded
from tests.liars.victims import images, victim

STRONG = (Proved, Matches)
EXAMPLE = images().train_images[:2]


def named(forger: Forger) -> str:
    return f"{forger.scheme}-{forger.name}"


@lru_cache(maxsize=1)
def registered() -> LayoutKey:
    """The layout key of a liar's own model."""
    return register(victim(2), EXAMPLE)


def made(forger: Forger, model: nn.Module) -> Key | None:
    """The key; None where it cannot even be made."""
    try:
        return forger(model, images())
    except KeyFileError:
        return None


FORGERS = [forger for forgers in FORGERIES.values() for forger in forgers]
MAKERS = [forger for forgers in SKELETONS.values() for forger in forgers]


@pytest.mark.parametrize("forger", FORGERS, ids=named)
def test_a_key_made_afterwards_gives_no_strong_word(forger: Forger) -> None:
    """The liar forges a key for somebody else's model, and brings a model of his own as the reference."""
    suspect = victim(1)
    key = made(forger, suspect)
    if key is None:
        return
    found = judge(suspect, EXAMPLE, reference=victim(2), watermark_key=key, options=JudgeOptions(recover=False))
    assert not isinstance(found.verdict, STRONG), found.verdict
    check_evidence(found.evidence)
    if forger.stopped_by == "nothing":  # but for the network, which is another one, nobody would notice
        assert found.answers.mark.answer == "read"
        with_it = replace(found.answers, network=Network("derived", "as if it were not asked"))
        assert isinstance(decide(with_it), Matches)


@pytest.mark.parametrize("forger", MAKERS, ids=named)
def test_a_skeleton_key_gives_no_strong_word(forger: Forger) -> None:
    """Not even with the right network: the key opens everything, and says nothing."""
    key = made(forger, victim(1))
    if key is None:
        return
    found = judge(victim(1), EXAMPLE, reference=victim(1), watermark_key=key, options=JudgeOptions(recover=False))
    assert not isinstance(found.verdict, STRONG), found.verdict
    assert found.answers.mark.answer in ("unread", "void")
    check_evidence(found.evidence)


def test_a_forged_key_with_the_victims_own_model_says_what_it_is_worth() -> None:
    """Whoever holds the model can bring it. The network matches; that the key was there first nobody shows."""
    forger = next(forger for forger in FORGERS if forger.stopped_by == "nothing")
    found = judge(victim(1), EXAMPLE, reference=victim(1), watermark_key=forger(victim(1), images()))
    assert isinstance(found.verdict, Matches)
    assert "can be made afterwards" in found.verdict.reason


# -- layout keys -----------------------------------------------------------------------------------------------------


def emptied(step: Step, what: str) -> Step:
    if what == "producers":
        return replace(step, maps=())
    numbers = 0 if what == "features" else step.features.shape[1]
    return replace(step, features=torch.zeros(len(step.label), numbers, dtype=torch.float64))


@pytest.mark.parametrize("what", ["producers", "features", "zeros"])
def test_a_layout_key_that_describes_nothing_is_refused(what: str) -> None:
    key = registered()
    hollow = replace(key.layout, steps=tuple(emptied(step, what) for step in key.layout.steps))
    with pytest.raises(CanonError, match="key"):
        judge(victim(3), EXAMPLE, layout_key=replace(key, layout=hollow))


def test_a_layout_key_that_leaves_spaces_out_is_refused() -> None:
    key = registered()
    for kept in (key.layout.steps[:1], key.layout.steps[1:], ()):
        short = replace(key, layout=replace(key.layout, steps=kept))
        try:
            found = judge(victim(2), EXAMPLE, layout_key=short)
        except CanonError:
            continue
        assert not isinstance(found.verdict, STRONG), found.verdict


def test_a_layout_key_of_another_model_gives_no_strong_word() -> None:
    found = judge(victim(3), EXAMPLE, layout_key=registered(), options=JudgeOptions(recover=False))
    assert not isinstance(found.verdict, STRONG), found.verdict


# -- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        JudgeOptions(tolerance=1e9),
        JudgeOptions(alpha=1.0),
        JudgeOptions(layers=("conv1",)),
        JudgeOptions(tolerance=0.5),
    ],
)
def test_loose_options_give_no_strong_word(options: JudgeOptions) -> None:
    key = next(forger for forger in FORGERS if forger.stopped_by == "nothing")(victim(1), images())
    for reference in (victim(1), victim(2)):
        found = judge(victim(1), EXAMPLE, reference=reference, watermark_key=key, options=options)
        assert not isinstance(found.verdict, STRONG), found.verdict
        check_evidence(found.evidence)


def test_a_layout_key_of_two_models_gives_no_strong_word() -> None:
    """Coarse figures of the suspect's beside exact ones of another model's: the key contradicts itself."""
    theirs = register(victim(3), EXAMPLE, seed=registered().layout.seed)
    found = judge(victim(3), EXAMPLE, layout_key=replace(registered(), portrait=theirs.portrait))
    assert found.answers.network.answer == "not decided", found.answers.network
    assert not isinstance(found.verdict, STRONG), found.verdict


@pytest.mark.parametrize("by_key", [False, True])
@pytest.mark.parametrize("taken", [("conv3",), ("conv1", "conv3"), ("conv2", "conv3"), ("conv3", "fc")])
def test_a_model_with_layers_of_the_suspect_gives_no_strong_word(taken: tuple[str, ...], by_key: bool) -> None:
    """Most numbers are the suspect's, most layers are not."""
    mine, theirs = victim(2), dict(victim(1).named_parameters())
    with torch.no_grad():
        for name, parameter in mine.named_parameters():
            if name.split(".")[0] in taken:
                parameter.copy_(theirs[name])
    anchor = {"layout_key": register(mine, EXAMPLE)} if by_key else {"reference": mine}
    found = judge(victim(1), EXAMPLE, **anchor, options=JudgeOptions(recover=False))
    assert not isinstance(found.verdict, STRONG), found.verdict


def test_a_layout_key_that_holds_no_outputs_is_no_fault() -> None:
    found = judge(victim(3), EXAMPLE, layout_key=replace(registered(), registered=None))
    assert not isinstance(found.verdict, STRONG), found.verdict


@pytest.mark.parametrize("left_out", [("block.norm2.weight",), ("block.norm2.weight", "block.norm2.bias")])
def test_what_a_layout_key_leaves_out_was_not_compared(left_out: tuple[str, ...]) -> None:
    """A key made afterwards, with the suspect's outputs, that is silent about the one thing that differs."""
    owner, words = seeded(Language, 1), torch.randint(0, 40, (2, 8), generator=torch.Generator().manual_seed(0))
    suspect = replaced(owner, left_out)
    honest, theirs = register(owner, words, seed=3), register(suspect, words, seed=3)
    assert honest.registered is not None
    assert theirs.registered is not None
    fixed = {name: kept for name, kept in honest.registered.fixed.items() if name not in left_out}
    outputs = replace(honest.registered, outputs=theirs.registered.outputs)
    found = judge(suspect, words, layout_key=replace(honest, registered=replace(outputs, fixed=fixed)))
    assert found.answers.function.answer == "agree"
    assert found.answers.network.answer not in ("equal", "contained"), found.answers.network
    check_evidence(found.evidence)
