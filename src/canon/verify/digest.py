"""SHA-256 of models, files and documents."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from canon.graph.tensors import tensor_names


def model_digest(model: nn.Module) -> str:
    """One digest for the names, types, shapes and values of all parameters and buffers."""
    found = hashlib.sha256()
    tensors, _ = tensor_names(model)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        found.update(tensor.flatten().view(torch.uint8).numpy().data if tensor.numel() else b"")
    return found.hexdigest()


def file_digest(path: str | Path) -> str:
    """Digest of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def document_digest(document: Any) -> str:
    """Digest of a JSON document, whatever the order of its fields and its white space."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
