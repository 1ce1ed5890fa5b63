"""Marks in attention and in an MLP, read from copies whose heads and streams stand in other bases."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import canon
from canon import watermarks
from canon.watermarks import Message, TrainOptions
from tests.watermarks.test_texts import EXAMPLE, TEXTS, of_transformers

QUICK = TrainOptions(epochs=3, batch_size=32, learning_rate=1e-2, cooldown=1, accuracy_goal=0.0, mark_strength=8.0)
SIZES = {
    "vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
    "max_position_embeddings": 64, "num_key_value_heads": 2,
}  # fmt: skip
CASES = {
    "Llama": (["turned_streams", "turned_heads"], ["model.layers.0.self_attn.o_proj", "model.layers.0.mlp.down_proj"]),
    "Bert": (
        ["turned_heads"],
        ["bert.encoder.layer.0.attention.self.query", "bert.encoder.layer.0.output.dense"],
    ),
}
HEADS = {"Llama": "LlamaForCausalLM", "Bert": "BertForMaskedLM"}


def _shuffled(model: nn.Module) -> nn.Module:
    """A stranger of the same sizes, whose numbers are spread alike."""
    stranger = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in stranger.parameters():
            tensor.copy_(tensor.flatten()[torch.randperm(tensor.numel(), generator=generator)].view_as(tensor))
    return stranger


@pytest.mark.parametrize(("family", "name"), [("Llama", "uchida17"), ("Llama", "greedy"), ("Bert", "uchida17")])
def test_a_mark_is_read_from_a_turned_copy(family: str, name: str) -> None:
    attacks, layers = CASES[family]
    scheme, message = watermarks.get(name), Message.random(seed=1, bits=32)
    owner = scheme.embed(of_transformers(HEADS[family], **SIZES), TEXTS, message=message, layers=layers, options=QUICK)
    turned = canon.attack(owner.model, EXAMPLE, attacks).model
    suspect = canon.attack(turned, EXAMPLE, "mix-opseq", ratio=0.2).model
    assert scheme.extract(suspect, owner.key, EXAMPLE).matched < 28

    found = canon.judge(suspect, EXAMPLE, reference=owner.model, watermark_key=owner.key)
    assert (found.verdict.kind, found.answers.mark.answer) == ("matches", "read")
    assert found.mark is not None
    assert found.mark.matched == owner.extraction.matched

    wrong = scheme.draw_key(owner.model, TEXTS, message=Message.random(seed=2, bits=32), layers=layers, seed=9)
    assert canon.judge(suspect, EXAMPLE, reference=owner.model, watermark_key=wrong).answers.mark.answer == "unread"
    stranger = canon.attack(_shuffled(owner.model), EXAMPLE, attacks).model
    assert canon.judge(stranger, EXAMPLE, reference=owner.model, watermark_key=owner.key).verdict.kind != "matches"
