"""Kind `methods`: the paper's attack, what each method makes of it without widths, and its page."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from canon.attacks import AttackOptions, attack_with
from canon.bench import trained
from canon.bench.lab import Owner, Setup, owner
from canon.bench.measures import measure
from canon.bench.records import Record
from canon.bench.suite import Suite
from canon.bench.tables import suite_page
from canon.bench.tables.document import Table, markdown
from canon.errors import BenchError
from canon.graph import trace
from canon.recovery import recover
from canon.zoo.training import train_options
from canon_benchmarks.baselines import BASELINES
from canon_benchmarks.cases import Methods, Sensitivity, drawn_anchor
from canon_benchmarks.measures.methods import restored
from tests.bench.samples import ENVIRONMENT

MODEL = "timm:test_resnet"
CASE = Methods(dataset="digits", model=MODEL, scheme="ipr_gan", attack="nso_clique", ratio=0.5)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    """A cache that trains for an epoch: enough to be measured, not to be good."""
    with pytest.MonkeyPatch.context() as patch:
        options = train_options("digits", MODEL, "cpu")
        patch.setattr(trained, "train_options", lambda *_: replace(options, epochs=1, cooldown=1))
        found = Setup(tmp_path_factory.mktemp("models"))
        owner(found, CASE.training)
    return found


@pytest.fixture(scope="module")
def mine(setup: Setup) -> Owner:
    return owner(setup, CASE.training)


def test_the_papers_attack_and_the_stronger_one(mine: Owner) -> None:
    paper, stronger = (
        replace(CASE, style=style).attack_options(mine.model, mine.example) for style in ("paper", "stronger")
    )
    assert (paper.chain, paper.zero_form, paper.permute, paper.scale) == (False, "in", True, True)
    assert paper.anchor is not None
    assert stronger == AttackOptions(ops=("nso_clique",), ratio=0.5, seed=0)
    assert stronger.chain
    assert stronger.anchor is None


def test_the_place_that_is_scaled_follows_the_seed() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
    graph = trace(net, torch.randn(2, 4))
    drawn = [drawn_anchor(graph, seed) for seed in range(20)]
    assert drawn == [drawn_anchor(graph, seed) for seed in range(20)]
    assert len(set(drawn)) == 2, "both hidden layers can be drawn, and nothing else"
    assert drawn_anchor(trace(nn.Linear(4, 2).eval(), torch.randn(2, 4)), 0) is None


def test_no_method_is_told_widths_and_exact_restores(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    from canon_benchmarks.measures import methods

    told: list[Any] = []

    def watched(*arguments: Any, **options: Any) -> Any:
        told.append(options.get("widths"))
        return recover(*arguments, **options)

    monkeypatch.setattr(methods, "recover", watched)
    record = measure(CASE, setup=setup)
    found = record.metrics
    assert record.outcome == "done", record.error
    assert told == [None, None]
    assert found["widths_given"] is False
    assert found["parameters_attacked"] > found["parameters_clean"]
    assert restored(record.metrics, "exact")
    assert found["exact_parameters"] == found["parameters_clean"]
    assert found["exact_tier1_layers"] == found["layers"]
    assert record.good
    assert {"attack", "recover_single", "recover_probe", "recover_exact"} <= set(record.seconds)


def test_a_method_that_does_nothing_does_not_restore(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The yardstick itself: the suspect handed back as it is must not count."""
    from canon_benchmarks.measures import methods

    monkeypatch.setitem(methods.METHODS, "exact", lambda suspect, _example: suspect)
    record = measure(CASE, setup=setup)
    assert record.outcome == "done", record.error
    assert record.metrics["exact_shapes"] is False
    assert record.metrics["exact_tier1"] is False
    assert not restored(record.metrics, "exact")
    assert not record.good


def test_a_parameter_of_the_probe_method_counts(setup: Setup) -> None:
    common: dict[str, Any] = {"dataset": "digits", "model": MODEL, "scheme": "ipr_gan", "attack": "nso_clique"}
    cases = [Sensitivity(**common, ratio=0.5, parameter="gamma_drop", value=value) for value in (1e-4, 0.0)]
    records = [measure(case, setup=setup) for case in cases]
    assert [record.outcome for record in records] == ["done", "done"], [record.error for record in records]
    assert [record.metrics["restored"] for record in records] == [True, False]
    text = markdown(suite_page(Suite("mine", "A title", "About it.", tuple(cases)), records))
    added, left = (
        int(str(records[1].metrics[name])) - int(str(records[1].metrics["parameters_clean"]))
        for name in ("parameters_attacked", "probe_parameters")
    )
    assert "| *0.0001* | *0.5* | *0* |" in text
    assert f"{100 * left / added:.3g} " in text
    with pytest.raises(BenchError, match="no parameter of the probe method is called 'gamma'"):
        Sensitivity(**common, ratio=0.5, parameter="gamma", value=1.0).check()


class Residual(nn.Module):
    """A stem and blocks whose outputs are added to it; no block: a plain chain."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.first = nn.ModuleList(nn.Conv2d(12, 10, 3, padding=1) for _ in range(blocks))
        self.second = nn.ModuleList(nn.Conv2d(10, 12, 3, padding=1) for _ in range(blocks))
        self.last = nn.Conv2d(12, 8, 3)
        self.head = nn.Linear(8, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(images))
        for first, second in zip(self.first, self.second, strict=True):
            x = torch.relu(x + second(torch.relu(first(x))))
        logits: torch.Tensor = self.head(torch.relu(self.last(x)).mean((2, 3)))
        return logits


SEQUENCES = [("nso_split", "nso_clique"), ("nso_clique", "nso_split"), ("nso_zero", "nso_split"), ("mix-opseq",)]


@pytest.mark.parametrize("ops", SEQUENCES, ids="-".join)
@pytest.mark.parametrize("blocks", [0, 1])
def test_a_single_pass_stops_where_layers_are_added_up(blocks: int, ops: tuple[str, ...]) -> None:
    """Why the page shows what it shows: sequences with a split, in a residual group, on the paper's attack."""
    torch.manual_seed(0)
    net, images = Residual(blocks).eval(), torch.randn(2, 3, 10, 10)
    options = AttackOptions(ops=ops, ratio=0.5, chain=False, zero_form="in", scale=False)
    suspect = attack_with(net, images, options).model

    def shapes(model: nn.Module | None) -> list[torch.Size]:
        assert model is not None
        return [value.shape for value in model.state_dict().values()]

    assert shapes(suspect) != shapes(net)
    assert (shapes(BASELINES["single-pass"].recover(suspect, images).model) == shapes(net)) is (blocks == 0)
    assert shapes(recover(suspect, images).model) == shapes(net)


def made_up(scheme: str, attack: str, seed: int = 0, dataset: str = "mnist", **changes: Any) -> Record:
    case = Methods(
        dataset=dataset, model="resnet18", scheme=scheme, attack=attack, ratio=0.2, seed=seed, attack_seed=seed
    )
    found: dict[str, Any] = {
        "clean_similarity": 1.0, "attacked_similarity": 0.5, "layers": 2, "widths_given": False, "good": True,
    }  # fmt: skip
    for method in ("single", "probe", "exact"):
        figures = {
            "shapes": True, "tier1": True, "aligned_similarity": 1.0, "recovered_similarity": 0.25, "wrong_key": 0.5,
            "delta_accuracy": 0.0, "tier1_layers": 2, "max_rel_err": 1e-7,
        }  # fmt: skip
        found |= {f"{method}_{name}": value for name, value in figures.items()}
    seconds = {f"recover_{method}": 1.0 for method in ("single", "probe", "exact")}
    return Record(case, "done", found | changes, seconds, ENVIRONMENT)


@pytest.fixture(scope="module")
def page() -> str:
    records = [
        made_up("uchida17", "nso_zero"),
        made_up("uchida17", "nso_zero", seed=1, attacked_similarity=0.75),
        made_up("uchida17", "nso_clique", single_shapes=False, single_tier1=False),
        made_up("uchida17", "nso_split", good=False, exact_aligned_similarity=0.9),
        made_up("uchida17", "nso_zero", dataset="digits"),
    ]
    suite = Suite("mine", "A title", "About it.", tuple(record.case for record in records))
    return markdown(suite_page(suite, records))


def test_its_page_says_where_each_method_stops(page: str) -> None:
    head = "| model | dataset | ρ | method | restored | shapes | Tier 1 | zero | clique | split |"
    assert head in page
    red = '<span style="color:#b00020">'
    single = f"| {red}3/4 **!**</span> | 3/4 | 3/4 | 2/2 | {red}0/1 **!**</span> | 1/1 |"
    assert f"| resnet18 | mnist | 0.2 | Algorithm 2, single pass {single}" in page
    assert "| resnet18 | mnist | 0.2 | probe | 4/4 | 4/4 | 4/4 | 2/2 | 1/1 | 1/1 |" in page
    assert "| resnet18 | digits | 0.2 | exact | 1/1 | 1/1 | 1/1 | 1/1 | 0/0 | 0/0 |" in page
    assert "told the clean widths" not in page.splitlines()[2]


def test_its_page_keeps_datasets_apart_and_averages_seeds(page: str) -> None:
    mnist = page.split("## The paper's attack: resnet18 on mnist, ρ = 0.2")[1].split("##")[0]
    assert "0.6250±0.1768→1.0000±0.0000 (0.2500±0.0000)" in mnist
    assert "*paper, table 2*" in mnist
    digits = page.split("## The paper's attack: resnet18 on digits, ρ = 0.2")[1].split("##")[0]
    assert "0.5000→1.0000 (0.2500)" in digits
    assert "paper, table" not in digits


def test_its_page_lists_what_was_not_restored(page: str) -> None:
    listed = page.split("## What the exact method did not restore")[1]
    assert "nso_split-0.2-0-paper`: shapes clean, Tier 1 on 2 of 2 layers (residual 1e-07), similarity 0.9000" in listed
    assert listed.count("\n- ") == 1


def test_a_page_with_tables() -> None:
    record = made_up("uchida17", "nso_zero", single_error="no", single_shapes=None)
    found = suite_page(Suite("mine", "", "", (record.case,)), [record])
    assert sum(isinstance(block, Table) for block in found.blocks) == 3
