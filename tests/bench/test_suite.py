"""Suites: those that come with Canon, and files of a user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from canon.bench.cases import TWIN, Recovery
from canon.bench.suite import Resources, check_suite, load_suite, suite_names, trainings_of
from canon.errors import BenchError

BLOCK = """
title = "Mine"
about = "A test."
[resources.recovery]
cpus = 2
gpus = 0.25
[[cases]]
kind = "recovery"
dataset = "digits"
model = "resnet18"
scheme = ["uchida17", "greedy"]
ratio = [0.2, 0.5]
attack = "nso_zero"
"""


def written(folder: Path, text: str) -> str:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_the_suites_of_the_paper_have_its_size() -> None:
    sizes = {name: len(load_suite(name).cases) for name in suite_names()}
    assert sizes["paper"] == 4 * 9 * 5 * 2
    assert sizes["no-camouflage"] == 4 * 9 * 5 * 2
    assert sizes["cifar100"] == 9 * 5 * (4 + 2)
    assert sizes["paper-method"] == (4 * 9 * 5 * 2 * 3 + 4 * 3 * 5 * 2) + (9 * 5 * 2 + 3 * 5 * 2), "MNIST, then digits"
    assert sizes["clean"] == 4 * 9 * 2
    assert sizes["tolerance"] == 9 * 5
    assert sizes["training-mnist"] == 4 * 10 * 3
    assert {"quick", "runtime", "baselines", "training-digits", "training-cifar100"} < set(sizes)
    camouflaged = {c.camouflage for c in load_suite("no-camouflage").cases if isinstance(c, Recovery)}
    assert camouflaged == {False}


def test_lists_are_multiplied_first_one_slowest(tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path, BLOCK))
    assert [(c.scheme, c.ratio) for c in suite.cases if isinstance(c, Recovery)] == [
        ("uchida17", 0.2), ("uchida17", 0.5), ("greedy", 0.2), ("greedy", 0.5),
    ]  # fmt: skip
    assert suite.name == "mine"
    assert suite.takes(suite.cases[0]) == Resources(cpus=2, gpus=0.25)
    assert [t.scheme for t in trainings_of(suite.cases)] == [TWIN, "uchida17", "greedy"]
    assert len(suite.only("greedy").cases) == 2
    with pytest.raises(BenchError, match="matches 'riga21'"):
        suite.only("riga21")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"resnet18"', '"resnet1818"', "resnet1818.*Did you mean"),
        ('"greedy"', '"greedily"', "no scheme is called 'greedily'"),
        ('"nso_zero"', '"nso_nought"', "nso_nought"),
        ('"nso_zero"', '"clean"', "clean"),
        ('kind = "recovery"', 'kind = "methods"\nstyle = "weaker"', "no style of attack is called 'weaker'"),
        ('"digits"', '"letters"', "no dataset is called 'letters'"),
        ("[resources.recovery]", "[resources.rest]", "kind of case that does not exist"),
        ("cpus = 2", "cores = 2", "cores"),
        ("ratio = [0.2, 0.5]", "ratio = [0.2, 'x']", "must be a float"),
        ("[[cases]]", "[[case]]", "cannot be read"),
        ("title", "name", "cannot be read"),
        ('kind = "recovery"', 'kind = "', "cannot be read"),
        ('about = "A test."', 'about = "A test."\ncolour = "red"', "unknown entries: colour"),
    ],
)
def test_faults_are_told(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(BenchError, match=message):
        check_suite(load_suite(written(tmp_path, BLOCK.replace(old, new))))


def test_unknown_suites() -> None:
    with pytest.raises(BenchError, match=r"no suite is called 'papr'.*Did you mean 'paper'"):
        load_suite("papr")
    with pytest.raises(BenchError, match="no such suite file"):
        load_suite("nowhere.toml")
