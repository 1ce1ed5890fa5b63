"""Every rewriting of a thief, alone and in sequence, behind a disguise: equal or contained, by reference and by key."""

from __future__ import annotations

import random
from typing import Any

import pytest

import canon
from canon.api import check_evidence
from canon.normal import house
from canon_benchmarks.thief import REWRITINGS, rewritten
from tests.programs.small import example, gap, hidden, key, owner

FOUND = ("equal", "contained")


def anchors() -> dict[str, dict[str, Any]]:
    return {"reference": {"reference": owner()}, "key": {"layout_key": key()}}


@pytest.mark.parametrize("name", REWRITINGS)
def test_the_thief_keeps_the_function(name: str) -> None:
    suspect = rewritten(hidden(), [name], seed=2)
    assert suspect.meta["done"] == [name]
    assert gap(suspect, hidden()) < 1e-9


@pytest.mark.parametrize("name", REWRITINGS)
def test_a_suspect_in_the_owners_program_computes_the_same(name: str) -> None:
    suspect = rewritten(hidden(), [name], seed=2)
    found = house(suspect, owner(), example())
    assert found.exact
    assert not found.missing
    assert list(found.surplus) == (["output 1"] if name == "further_output" else [])
    assert gap(found.model, suspect) < 1e-8
    assert set(dict(found.model.named_modules())) >= {"stem", "conv1", "fc", "group"}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["reference", "key"])
@pytest.mark.parametrize("name", REWRITINGS)
def test_each_rewriting(name: str, way: str) -> None:
    found = canon.judge(rewritten(hidden(), [name], seed=2), example(), **anchors()[way])
    assert found.answers.network.answer in FOUND, found.answers.network.reason
    assert found.answers.function.answer == "agree"
    check_evidence(found.evidence)


@pytest.mark.parametrize("way", ["reference", "key"])
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 20))])
def test_sequences_of_five(seed: int, way: str) -> None:
    names = random.Random(seed).choices(list(REWRITINGS), k=5)
    found = canon.judge(rewritten(hidden(seed % 3), names, seed=seed), example(), **anchors()[way])
    assert found.answers.network.answer in FOUND, (names, found.answers.network.reason)


def test_steps_are_in_the_evidence() -> None:
    found = canon.judge(rewritten(hidden(), ["identity_conv"], seed=2), example(), reference=owner())
    program = found.evidence["program"]
    assert program["exact"]
    assert any("kernel is the identity" in step for step in program["steps"])


def test_what_is_the_owners_program_is_left_alone() -> None:
    assert canon.judge(hidden(), example(), reference=owner()).evidence["program"] is None


def test_locate_and_certify_read_other_programs() -> None:
    suspect = rewritten(hidden(), ["swap_operands", "identity_conv", "rename"], seed=4)
    assert canon.locate(suspect, owner(), example()).answer == "contained"
    assert canon.locate(suspect, key(), example()).answer == "contained"
    assert canon.certify(rewritten(owner(), ["zero_branch", "rename"], seed=4), owner(), example()).passed


def test_a_key_file_keeps_the_program(tmp_path: Any) -> None:
    key().save(tmp_path / "owner.key")
    again = canon.LayoutKey.load(tmp_path / "owner.key")
    assert again.program is not None
    assert again.program == key().program
    assert all(t.is_meta for t in again.program.model().parameters())
