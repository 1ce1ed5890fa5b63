"""Hidden networks as ONNX files in float16 and int8: found again, and their mark is read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import canon
from canon import watermarks, zoo
from canon.attacks import attack
from canon.verify import LayoutKey
from canon.watermarks import EmbedResult, Message, TrainOptions
from canon_benchmarks.exports import write
from tests.verify.small import example, tiny

OTHERS = ("float16", "int8 QDQ", "int8 QOperator")
QUICK = TrainOptions(epochs=40, batch_size=32, cooldown=1, accuracy_goal=0.8)


@pytest.fixture(scope="module")
def marked() -> EmbedResult:
    data = zoo.dataset("digits").limited(480, 120).resized(8)
    return watermarks.get("uchida17").embed(tiny(0), data, message=Message.random(0, 48), seed=0, options=QUICK)


@pytest.fixture(scope="module")
def key(marked: EmbedResult) -> LayoutKey:
    return canon.register(marked.model, example())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "form",
    [
        "int8 dynamic",
        *(pytest.param(form, marks=pytest.mark.slow) for form in ("float16", "int8 QDQ", "int8 QOperator")),
    ],
)
def test_a_rounded_file_keeps_the_mark(form: str, marked: EmbedResult, key: LayoutKey, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    hidden = attack(marked.model, example(), "mix-opseq", ratio=0.2, seed=3).model
    path = tmp_path / "suspect.onnx"
    write(hidden, example(), path, "torchscript", form, fold=True)
    suspect = canon.load(path)
    for anchor in ({"reference": marked.model}, {"layout_key": key}):
        found = canon.judge(suspect, example(), watermark_key=marked.key, **anchor)
        assert found.answers.network.answer in ("equal", "contained", "derived"), found.answers.network.reason
        assert found.answers.mark.answer == "read", found.answers.mark
