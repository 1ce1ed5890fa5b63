"""A small language model, and the text it learns: Python's own standard library, read where it is installed.

Nothing is downloaded. Tokens are bytes. The model is a decoder as they are built today: RMSNorm before attention and
before a gated MLP, one residual stream.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from canon.errors import DataError
from canon.watermarks.data import Dataset

VOCABULARY: Final = 256
"""Tokens are bytes."""

CONTEXT: Final = 64
"""Tokens of a text."""

_TEXTS: Final = 8_192
_TESTED: Final = 8
"""One text in so many is for testing."""


class Block(nn.Module):
    """Attention and a gated MLP, each behind a norm and added to the stream."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.RMSNorm(width)
        self.query, self.key, self.value, self.mixed = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.mlp_norm = nn.RMSNorm(width)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, stream: Tensor) -> Tensor:
        """The stream after this block."""
        x = self.attention_norm(stream)
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.mixed(mixed.transpose(1, 2).flatten(2))
        x = self.mlp_norm(stream)
        result: Tensor = stream + self.down(functional.silu(self.gate(x)) * self.up(x))
        return result


class LanguageModel(nn.Module):
    """Bytes to scores for the byte that follows each."""

    def __init__(self, width: int = 96, blocks: int = 3, heads: int = 4, hidden: int = 288) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads, hidden) for _ in range(blocks))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Scores, one row for every token."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        stream = self.tokens(input_ids) + self.positions(places)
        for block in self.blocks:
            stream = block(stream)
        scores: Tensor = self.head(self.norm(stream))
        return scores


def library_texts(count: int = _TEXTS) -> Dataset:
    """Texts of the standard library: bytes, and for each the one that follows. Files are taken in the order of names.

    >>> library_texts(32).train_images.shape
    torch.Size([28, 64])
    """
    folder = Path(sysconfig.get_path("stdlib"))
    wanted = count * CONTEXT + 1
    data = bytearray()
    for path in sorted(folder.glob("*.py")):
        data += path.read_bytes()
        if len(data) >= wanted:
            break
    if len(data) < wanted:
        raise DataError(
            f"the standard library has {len(data):,} bytes of text here, and {wanted:,} are wanted",
            where=str(folder),
            hint="Use a Python whose library is installed as files.",
        )
    tokens = torch.frombuffer(data, dtype=torch.uint8)[:wanted].long()
    texts, following = tokens[:-1].view(count, CONTEXT), tokens[1:].view(count, CONTEXT)
    tested = torch.arange(count) % _TESTED == 0
    return Dataset(
        "library", VOCABULARY, texts[~tested], following[~tested], texts[tested].clone(), following[tested].clone()
    )
