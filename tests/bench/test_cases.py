"""Cases: names, values, and what is refused."""

from __future__ import annotations

import pytest

from canon.bench.cases import TWIN, Case, Recovery, Training, read_case
from canon.bench.extensions import kinds, part_of
from canon.bench.suite import load_suite, suite_names
from canon.errors import BenchError
from canon_benchmarks.cases import Clean

RECOVERY = Recovery(dataset="digits", model="timm:test_resnet", scheme="riga21", attack="mix-opseq", ratio=0.5)


@pytest.mark.parametrize("suite", suite_names())
def test_names_tell_cases_apart_and_values_give_them_back(suite: str) -> None:
    cases = load_suite(suite).cases
    assert len({case.name for case in cases}) == len(cases)
    assert all(read_case(case.values) == case for case in cases)
    assert not any(set(case.name) & set(":/ ") for case in cases)


def test_what_a_case_needs() -> None:
    assert RECOVERY.training == Training(dataset="digits", model="timm:test_resnet", scheme="riga21")
    assert RECOVERY.stranger.scheme == TWIN
    assert RECOVERY.stranger.seed != RECOVERY.seed
    assert RECOVERY.trainings == (RECOVERY.training, RECOVERY.stranger)
    assert RECOVERY.training.trainings == (RECOVERY.training.twin, RECOVERY.training)
    assert Clean(dataset="digits", model="resnet18", scheme="greedy").trainings[0].scheme == "greedy"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "retraining"}, "no kind of case is called 'retraining'"),
        ({"colour": "red"}, "has no 'colour'"),
        ({"ratio": "much"}, "'ratio' of a case of kind 'recovery' must be a float"),
        ({"seed": True}, "'seed' of a case of kind 'recovery' must be a int"),
        ({"attack": None}, "'attack' of a case"),
    ],
)
def test_what_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(BenchError, match=message):
        read_case(RECOVERY.values | change)


def test_a_case_must_be_complete() -> None:
    values = RECOVERY.values
    del values["attack"]
    with pytest.raises(BenchError, match="incomplete"):
        read_case(values)


def test_every_kind_is_measured_and_shown() -> None:
    for kind in kinds():
        assert issubclass(part_of(kind, "case"), Case)
        assert part_of(kind, "case").kind == kind
        assert callable(part_of(kind, "measure"))
        assert callable(part_of(kind, "blocks"))
