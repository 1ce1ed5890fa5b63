"""The public names: what they show of themselves, and what they say to what they cannot use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import canon
from canon._shown import Shown
from canon.errors import CanonError
from tests.verify.small import example, tiny


@pytest.fixture(scope="module")
def results() -> dict[str, Shown]:
    model, given = tiny(), example()
    attacked = canon.attack(model, given, ["nso_zero"], ratio=0.2)
    recovered = canon.recover(attacked.model, given)
    key = canon.register(model, given)
    return {
        "attack": attacked,
        "recovery": recovered,
        "report": recovered.report,
        "graph": canon.trace(model, given),
        "key": key,
        "location": canon.locate(attacked.model, model, given),
        "certificate": canon.certify(recovered.model, model, given),
        "alignment": canon.align(recovered.model, key, given),
        "judgement": canon.judge(attacked.model, given, reference=model),
    }


def test_nothing_but_public_names_is_shown() -> None:
    assert dir(canon) == sorted(canon.__all__)


def test_results_show_themselves_in_a_line(results: dict[str, Shown]) -> None:
    for name, result in results.items():
        text = repr(result)
        assert text.startswith(type(result).__name__), name
        assert len(text) < 1000, name
        assert "tensor(" not in text, name
        assert "\n" not in text, name


def test_notebooks_show_a_table_and_no_markup_of_a_stranger(results: dict[str, Shown]) -> None:
    assert "<td style='text-align:left'>matches</td>" in results["judgement"]._repr_html_()

    class Hostile(Shown):
        def _shown(self) -> dict[str, object]:
            return {"name": "<script>\x1b[2J"}

    assert "<script>" not in Hostile()._repr_html_()
    assert "\x1b" not in Hostile()._repr_html_() + repr(Hostile())


WRONG: dict[str, Callable[[nn.Module, torch.Tensor, str], object]] = {
    "trace": lambda model, given, path: canon.trace(path, given),  # type: ignore[arg-type]
    "attack": lambda model, given, path: canon.attack(path, given, ["nso_zero"]),  # type: ignore[arg-type]
    "recover": lambda model, given, path: canon.recover(path, given),  # type: ignore[arg-type]
    "register": lambda model, given, path: canon.register(path, given),  # type: ignore[arg-type]
    "locate": lambda model, given, path: canon.locate(path, model, given),  # type: ignore[arg-type]
    "locate in": lambda model, given, path: canon.locate(model, path, given),  # type: ignore[arg-type]
    "align": lambda model, given, path: canon.align(path, model, given),  # type: ignore[arg-type]
    "align to": lambda model, given, path: canon.align(model, path, given),  # type: ignore[arg-type]
    "certify": lambda model, given, path: canon.certify(path, model, given),  # type: ignore[arg-type]
    "certify by": lambda model, given, path: canon.certify(model, path, given),  # type: ignore[arg-type]
    "save": lambda model, given, path: canon.save(path, path),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("call", WRONG)
def test_a_path_in_place_of_a_model_is_answered_with_the_way_to_a_model(call: str) -> None:
    with pytest.raises(CanonError, match=r"canon\.load\(path\) reads a model"):
        WRONG[call](tiny(), example(), "suspect.safetensors")


def test_files_are_judged_as_their_models_are(tmp_path: Path) -> None:
    model, given = tiny(), example()
    suspect, owner, key = tmp_path / "suspect.pt2", tmp_path / "owner.pt2", tmp_path / "layout.key"
    canon.save(canon.attack(model, given, ["nso_split"], ratio=0.2).model, suspect, example=given)
    canon.save(model, owner, example=given)
    canon.register(model, given).save(key)
    for anchor in ({"reference": owner}, {"layout_key": str(key)}):
        found = canon.judge(str(suspect), given, **anchor)
        assert found.verdict.kind == "matches", found
        assert found.evidence["inputs"]["suspect"]["file"] == "suspect.pt2"
        assert all(len(one["sha256"]) == 64 for one in found.evidence["inputs"].values())


def test_parameters_are_counted_in_one_way() -> None:
    attacked = canon.attack(tiny(), example(), ["nso_zero"], ratio=0.2)
    report = canon.recover(attacked.model, example()).report
    counts = [sum(p.numel() for p in model.parameters()) for model in (attacked.model, tiny())]
    assert attacked.log.parameters == counts[0]
    assert report.parameters == tuple(counts)
