"""Kind `recovery` where the owner's own model has channels that do nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from canon.api import Judgement, judge
from canon.bench import trained
from canon.bench.cases import Recovery
from canon.bench.lab import Owner, Setup, answers, owner
from canon.bench.measures import recovery
from canon.bench.measures.attacked import count
from canon.bench.measures.sheet import Sheet
from canon.verify import layout_of, register
from canon.zoo.training import train_options

MODEL = "timm:test_resnet"
CASE = Recovery(dataset="digits", model=MODEL, scheme="ipr_gan", attack="nso_zero", ratio=0.5)


def pruned(mine: Owner) -> Owner:
    """The same owner, with a quarter of a layer's channels silenced."""
    layer, norm = (dict(mine.model.named_modules())[f"layer1.0.{name}"] for name in ("conv1", "bn1"))
    assert isinstance(layer, nn.Conv2d)
    assert isinstance(norm, nn.BatchNorm2d)
    silent = slice(0, layer.out_channels // 4)
    with torch.no_grad():
        for tensor in (layer.weight, norm.weight, norm.bias, norm.running_mean):
            assert tensor is not None
            tensor[silent] = 0
    layout, key = layout_of(mine.model, mine.example), register(mine.model, mine.example, seed=0)
    return replace(mine, layout=layout, layout_key=key, logits=answers(mine.model, mine.images))


def test_an_owner_with_idle_channels_is_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = train_options("digits", MODEL, "cpu")
    monkeypatch.setattr(trained, "train_options", lambda *_: replace(options, epochs=1, cooldown=1))
    setup, sheet = Setup(tmp_path), Sheet()
    mine = pruned(owner(setup, CASE.training))
    assert mine.key.layers != ("layer1.0.bn1",)
    monkeypatch.setattr(recovery, "owner", lambda *_: mine)
    suspects = []

    def hear(suspect: nn.Module, *given: Any, **options: Any) -> Judgement:
        suspects.append(suspect)
        return judge(suspect, *given, **options)

    monkeypatch.setattr(recovery, "judge", hear)
    recovery.measure_recovery(CASE, setup, sheet)
    assert not sheet.metrics["shapes"], "recovery also takes the owner's own idle channels away"
    assert {count(suspect) for suspect in suspects} == {sheet.metrics["parameters_attacked"]}
    assert str(sheet.metrics["verdict"]).startswith("matches")
    assert str(sheet.metrics["key_verdict"]).startswith("matches")
    assert str(sheet.metrics["wrong_key_verdict"]).startswith("inconclusive")
    assert sheet.metrics["aligned_similarity"] == sheet.metrics["clean_similarity"]
