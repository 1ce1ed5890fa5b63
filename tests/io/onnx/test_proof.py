"""From safetensors through an attack and an ONNX file back to the reference."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import canon
from canon import zoo
from canon.bench.lab import Setup
from canon.bench.measures import measure
from canon.verify.verdict import Matches, Refuted
from canon_benchmarks.cases import Roundtrip
from canon_benchmarks.measures.roundtrip import anonymize
from tests.verify.small import example, tiny

FORMS = (("kept", "kept"), ("folded", "anonymous"), ("kept", "anonymous"), ("folded", "kept"))
"""What becomes of norms and names in the suspect's file."""


@pytest.fixture(scope="module")
def suspects(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """An attacked network as ONNX: norms kept or folded, names kept or not."""
    folder = tmp_path_factory.mktemp("suspects")
    attacked = canon.attack(tiny(), example(), ops=["mix-opseq"], ratio=0.5, seed=0, permute=True, scale=True).model
    found: dict[tuple[str, str], Path] = {}
    for norms in ("kept", "folded"):
        named, anonymous = (folder / f"{norms}-{names}.onnx" for names in ("kept", "anonymous"))
        canon.save(attacked, named, example=example(), fold_norms=norms == "folded")
        shutil.copy(named, anonymous)
        anonymize(anonymous)
        found |= {(norms, "kept"): named, (norms, "anonymous"): anonymous}
    return found


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_an_attacked_file_is_proved_to_be_the_reference(
    form: tuple[str, str], suspects: dict[tuple[str, str], Path]
) -> None:
    suspect = canon.load(suspects[form])
    found = canon.judge(suspect, example(), reference=tiny())
    assert isinstance(found.verdict, Matches), found.verdict
    certificate = found.compared.certificate
    assert certificate is not None
    assert certificate.max_rel_err < 1e-4
    assert [layer.name for layer in certificate.layers] == ["conv1", "conv2", "conv3", "fc"]


def test_by_the_layout_key_alone(suspects: dict[tuple[str, str], Path]) -> None:
    key = canon.register(tiny(), example())
    recovered = canon.recover(canon.load(suspects["kept", "anonymous"]), example()).model
    alignment = canon.align(recovered, key, example())
    assert alignment.established
    for name, tensor in tiny().state_dict().items():
        if "num_batches" not in name:
            torch.testing.assert_close(alignment.model.state_dict()[name], tensor, rtol=1e-3, atol=1e-4)


def test_another_network_is_not(suspects: dict[tuple[str, str], Path]) -> None:
    suspect = canon.load(suspects["kept", "anonymous"])
    assert isinstance(canon.judge(suspect, example(), reference=tiny(seed=1)).verdict, Refuted)
    found = canon.judge(suspect, example(), reference=zoo.model("resnet18"))
    assert found.answers.network.answer == "not decided"


@pytest.mark.slow
@pytest.mark.parametrize("model", zoo.PAPER_MODELS)
@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_the_models_of_the_paper(model: str, form: tuple[str, str], tmp_path: Path) -> None:
    norms, names = form
    assert measure(Roundtrip(model=model, norms=norms, names=names), setup=Setup(tmp_path)).good
