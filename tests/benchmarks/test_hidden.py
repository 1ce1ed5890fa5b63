"""Disguised networks with random weights: what is measured on them, what pages say, and what records are kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from canon.attacks import attack_with
from canon.bench.records import Record, Store
from canon.bench.suite import load_suite
from canon.errors import AttackError, BenchError
from canon_benchmarks.cases import Folded, Kept, Noisy, Restored
from canon_benchmarks.measures import hidden
from canon_benchmarks.measures.noisy import disturb
from canon_benchmarks.subjects import MODELS, gap, inputs, logits, subject
from tests.bench.samples import ENVIRONMENT
from tests.benchmarks.measured import measured, page

SMALL: Any = {"model": "squeezenet1_1", "attack": "mix-opseq", "ratio": 0.2}
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    hidden.clean_model.cache_clear()


def test_recovery_is_held_against_the_clean_model() -> None:
    found = measured(Restored(**SMALL))
    assert found.good, found.error
    assert found.metrics["shapes"] is True
    assert found.seconds["recover"] > 0
    assert found.metrics["recovered"] == found.metrics["clean"] < found.metrics["attacked"]
    assert "| squeezenet1_1 | 0.2 | 1/1," in page(found)


def test_an_attack_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def small(model: Any, example: Any, options: Any) -> Any:
        return attack_with(model, example, replace(options, max_parameters=1_000_000))

    monkeypatch.setattr(hidden, "attack_with", small)
    found = measured(Restored(**SMALL))
    assert found.outcome == "refused"
    assert "parameters, more than 1,000,000" in str(found.error)


def test_a_table_of_attacks() -> None:
    def record(outcome: Any = "done", attack: str = "nso_zero", seed: int = 0, **metrics: Any) -> Record:
        case = Restored(model="resnet18", attack=attack, ratio=0.2, seed=seed)
        return Record(case, outcome, {"gap": 2e-7, **metrics}, {"recover": 1.0}, ENVIRONMENT, "too large")

    text = page(
        record(good=True), record(seed=1, good=False, gap=3e-2), record("refused", seed=2),
        record(attack="mix-opseq", kernels="not expanded"),
    )  # fmt: skip
    assert "| resnet18 | 0.2 | 1/2, 3e-02, 1 refused | 1/1, 2e-07 |" in text
    assert "1 were attacked without expanded kernels" in text
    assert "- `restored-resnet18-nso_zero-0.2-2` refused: too large" in text


def test_a_changed_function_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Kept(model="squeezenet1_1", attack="nso_zero", ratio=0.2)
    assert measured(case).good

    def spoiled(*arguments: Any) -> Any:
        result = attack_with(*arguments)
        next(result.model.parameters()).data *= 1.01
        return result

    monkeypatch.setattr(hidden, "attack_with", spoiled)
    assert not measured(case).good


def test_what_is_too_large_is_tried_without_growing_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_growth(model: Any, example: Any, options: Any) -> Any:
        if options.expand_kernels:
            raise AttackError("too large")
        return attack_with(model, example, options)

    monkeypatch.setattr(hidden, "attack_with", no_growth)
    found = measured(Kept(model="squeezenet1_1", attack="nso_zero", ratio=0.2))
    assert found.good
    assert found.metrics["kernels"] == "not expanded"


@pytest.mark.slow
def test_folded_norms() -> None:
    found = measured(Folded(model="densenet121", attack="nso_zero", ratio=0.2, seed=1))
    assert found.good, found
    assert found.metrics["norms"] == 59


def test_noise_changes_numbers_and_rounding_does_not_hide_it() -> None:
    model = subject("squeezenet1_1")
    before = model.get_parameter("features.0.weight").detach().clone()
    noisy = disturb(model, "1e-3", 0)
    ratio = noisy.get_parameter("features.0.weight").detach() / before - 1
    assert 0.9e-3 < float(ratio.std()) < 1.1e-3
    half = disturb(model, "float16", 0)
    assert torch.equal(half.get_parameter("features.0.weight"), before.half().float())
    assert torch.equal(model.get_parameter("features.0.weight"), before)


def test_a_table_of_noise() -> None:
    found = [
        Record(Noisy(**SMALL, noise=noise), "done", {"shapes": good}, {}, ENVIRONMENT)
        for noise, good in (("1e-6", True), ("1e-2", False), ("float16", True))
    ]
    assert "| model | 1e-6 | 1e-2 | float16 |" in page(*found)
    assert "| squeezenet1_1 | 1/1 | 0/1 | 1/1 |\n| all | 1/1 | 0/1 | 1/1 |" in page(*found)


def test_cases_say_what_does_not_exist() -> None:
    with pytest.raises(BenchError, match="no noise is called 'loud'"):
        Noisy(**SMALL, noise="loud").check()
    with pytest.raises(BenchError, match="no model of the grids is called 'resnet19'"):
        Restored(model="resnet19", attack="nso_zero", ratio=0.2).check()


@pytest.mark.parametrize("name", ["attack_grid", "recovery_grid", "verify_grid", "folded_grid", "onnx"])
def test_all_kept_records_came_out_as_they_should(name: str) -> None:
    store, suite = Store.open(ROOT / "docs/results/records", name), load_suite(name)
    assert set(store.records) == {case.name for case in suite.cases}
    assert all(record.good for record in store.records.values())


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "squeezenet1_1", "convnext_tiny"])
def test_subjects_hide_nothing(name: str) -> None:
    """A freshly built convnext has layers that are multiplied by a millionth."""
    model = subject(name)
    assert all(float(parameter.detach().abs().max()) > 1e-3 for parameter in model.parameters())
    answers = logits(model, inputs(name), torch.float64)
    assert float(answers.std()) > 1e-6
    assert gap(logits(model, inputs(name)), answers) < 1e-4
    assert name in MODELS
