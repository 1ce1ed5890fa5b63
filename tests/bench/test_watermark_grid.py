"""The grid of schemes × models: records, resuming, kept models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from canon import watermarks, zoo
from canon.bench import watermark_grid
from canon.bench.watermark_grid import GridOptions, read_record, run_grid
from tests.watermarks.small import QUICK, small_digits, small_net


@pytest.fixture(autouse=True)
def small_zoo(monkeypatch: pytest.MonkeyPatch) -> None:
    data = small_digits()

    def model(name: str, *, classes: int = 10, seed: int = 0) -> torch.nn.Module:
        return small_net(seed)

    monkeypatch.setattr(zoo, "model", model)
    monkeypatch.setattr(zoo, "dataset", lambda name, folder=None: data)
    monkeypatch.setattr(zoo, "input_size", lambda name: 16)
    monkeypatch.setattr(watermark_grid, "train_options", lambda dataset, model, device: replace(QUICK, epochs=8))


def test_records_and_resuming(tmp_path: Path) -> None:
    options = GridOptions(
        dataset="digits",
        out=tmp_path / "records",
        models=("small",),
        schemes=("ipr_gan", "deepipr"),
        save_models=tmp_path / "models",
    )
    lines: list[str] = []
    first = run_grid(options, lines.append)
    assert [record.scheme for record in first] == ["ipr_gan", "deepipr"]
    assert first[0].similarity == 1.0
    assert first[0].accuracy > 0.8
    assert first[0].wrong_key_similarity == pytest.approx(0.5, abs=0.2)
    assert first[0].unmarked_similarity == pytest.approx(0.5, abs=0.2)
    details = first[1].details
    assert details is not None
    assert float(details["private accuracy"]) > 0.5
    path = tmp_path / "records" / "digits-small-ipr_gan-0.json"
    assert read_record(path) == first[0]
    assert json.loads(path.read_text())["versions"]["torch"] == torch.__version__
    assert (tmp_path / "records" / "digits-small-twin-0.json").exists()

    key = watermarks.load_key(tmp_path / "models" / "digits-small-ipr_gan-0.key")
    from safetensors.torch import load_file

    kept = small_net(seed=9)
    kept.load_state_dict(load_file(tmp_path / "models" / "digits-small-ipr_gan-0.safetensors"))
    assert watermarks.get("ipr_gan").similarity(kept, key) == 1.0

    (tmp_path / "records" / "digits-small-deepipr-0.json").unlink()
    lines.clear()
    again = run_grid(options, lines.append)
    assert again[0] == first[0]
    assert not any("ipr_gan" in line or "twin epoch" in line for line in lines), "finished work was repeated"
    assert again[1].similarity == first[1].similarity
