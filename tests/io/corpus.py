"""Good files of every format, for damage to start from."""

from __future__ import annotations

import json
from pathlib import Path

KINDS = {
    "safetensors": "model.safetensors",
    "index": "parts.safetensors.index.json",
    "state dict": "model.pt",
    "old state dict": "old.pth",
    "torch.export": "model.pt2",
    "onnx": "model.onnx",
    "layout key": "layout.key",
    "watermark key": "owner.key",
}
"""Formats, and a good file of each."""


def make_corpus(folder: Path) -> None:
    """Write a good file of every kind."""
    import torch
    from safetensors.torch import save_file

    import canon
    from canon import watermarks
    from tests.io.small import attacked, example, small

    model = attacked()
    for name in ("model.safetensors", "model.pt", "model.pt2", "model.onnx"):
        canon.save(model, folder / name, example=example())
    torch.save(model.state_dict(), folder / "old.pth", _use_new_zipfile_serialization=False)
    state = model.state_dict()
    parts = {f"part-{i}.safetensors": sorted(state)[i::2] for i in range(2)}
    for file, names in parts.items():
        save_file({name: state[name].contiguous() for name in names}, folder / file)
    index = {"metadata": {"total_size": 1}, "weight_map": {n: file for file, names in parts.items() for n in names}}
    (folder / KINDS["index"]).write_text(json.dumps(index))
    canon.register(small(), example()).save(folder / "layout.key")
    key = watermarks.Key(
        scheme="uchida17",
        architecture="0",
        shapes={"first": (8, 8, 3, 3)},
        message=watermarks.Message.random(seed=0, bits=16),
        tensors={"projection": torch.randn(72, 16)},
    )
    key.save(folder / "owner.key")


def read(kind: str, path: Path) -> None:
    """Read a file of this kind as a user of Canon would."""
    from canon.io import read_model
    from canon.verify import LayoutKey
    from canon.watermarks import load_key

    if kind == "layout key":
        LayoutKey.load(path)
    elif kind == "watermark key":
        load_key(path)
    else:
        read_model(path, "tests.io.small:SmallNet")
