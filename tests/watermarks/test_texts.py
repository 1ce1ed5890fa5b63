"""Marks in the linear layers of models that read texts: embedded, hidden by an attack, and read again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import canon
from canon import watermarks
from canon.errors import DataError, KeyFileError, WatermarkError
from canon.watermarks import Augmentation, Dataset, EmbedResult, Message, TrainOptions
from canon.watermarks.layers import inner_linear, layer_weight
from canon.watermarks.norms import norms_behind
from canon.watermarks.passports import PassportScheme
from canon.zoo.compatibility import import_transformers
from canon.zoo.text import LanguageModel, library_texts

TEXTS = library_texts(256)
EXAMPLE = TEXTS.train_images[:2]
QUICK = TrainOptions(epochs=8, batch_size=32, learning_rate=3e-3, cooldown=1, accuracy_goal=0.0, mark_strength=4.0)
IN_THE_STREAM = ("ipr_gan", "deepipr", "passport_aware")
"""Schemes whose carriers an attack on hidden units leaves where they are, or moves in some layers only."""


def language_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LanguageModel(width=64, blocks=2, heads=4, hidden=160).eval()


def of_transformers(name: str, **settings: Any) -> nn.Module:
    package = import_transformers()
    kind = getattr(package, name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built: nn.Module = kind(kind.config_class(**settings)).eval()
    return built


def gpt2() -> nn.Module:
    return of_transformers(
        "GPT2LMHeadModel", vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_inner=160, n_positions=64, use_cache=False
    )


def embedded(name: str, model: nn.Module, layers: list[str] | None = None) -> EmbedResult:
    message = Message.random(seed=1, bits=64)
    return watermarks.get(name).embed(model, TEXTS, message=message, layers=layers, options=QUICK)


def hidden_and_found(result: EmbedResult) -> tuple[float, canon.api.Judgement]:
    """The share of bits that the key reads from a disguised copy as it is, and the verdict on it."""
    attacked = canon.attack(result.model, EXAMPLE, ["nso_zero", "nso_clique", "nso_split"], ratio=0.25, seed=3).model
    assert sum(p.numel() for p in attacked.parameters()) > sum(p.numel() for p in result.model.parameters())
    with torch.no_grad():
        was, now = (watermarks.embedding.logits_of(model(EXAMPLE)) for model in (result.model, attacked))
    assert float((was - now).abs().max()) < 1e-3 * float(was.abs().max()), "the attack changed the function"
    read = watermarks.get(result.key.scheme).extract(attacked, result.key, EXAMPLE)
    return read.matched / read.total, canon.judge(attacked, EXAMPLE, reference=result.model, watermark_key=result.key)


@pytest.mark.parametrize("name", watermarks.names())
def test_every_scheme_marks_a_language_model(name: str) -> None:
    result = embedded(name, language_model())
    assert result.extraction.matched == result.extraction.total
    hidden, judged = hidden_and_found(result)
    assert name in IN_THE_STREAM or hidden < 0.8
    assert judged.evidence["verdict"]["kind"] == "matches"
    assert judged.mark is not None
    assert judged.mark.matched == judged.mark.total


@pytest.mark.parametrize("name", watermarks.names())
def test_every_scheme_marks_named_layers_with_transposed_weights(name: str) -> None:
    """GPT-2's layers keep inputs as rows; `c_proj` reads the hidden units and writes to what a norm reads."""
    layers = [f"transformer.h.{block}.mlp.c_proj" for block in range(2)]
    result = embedded(name, gpt2(), layers)
    assert dict(result.key.shapes) == dict.fromkeys(layers, (64, 160))
    assert result.extraction.matched == result.extraction.total
    _, judged = hidden_and_found(result)
    assert judged.evidence["verdict"]["kind"] == "matches"
    assert judged.mark is not None
    assert judged.mark.matched == judged.mark.total


def test_a_layout_key_is_enough() -> None:
    result = embedded("ipr_ic", language_model(), ["blocks.0.gate"])
    attacked = canon.attack(result.model, EXAMPLE, ["nso_clique"], ratio=0.25).model
    key = canon.register(result.model, EXAMPLE)
    judged = canon.judge(attacked, EXAMPLE, layout_key=key, watermark_key=result.key)
    assert judged.evidence["verdict"]["kind"] == "matches"
    assert judged.mark is not None
    assert judged.mark.matched == judged.mark.total


def test_defaults_are_inner_layers() -> None:
    model = gpt2()
    inner = inner_linear(model, EXAMPLE)
    assert "lm_head" not in inner, "tied to the embedding, and the model's output"
    assert list(inner)[-2:] == ["transformer.h.1.mlp.c_fc", "transformer.h.1.mlp.c_proj"]
    assert watermarks.get("uchida17").default_layers(model, EXAMPLE) == tuple(list(inner)[-2:])
    assert watermarks.get("ipr_ic").default_layers(model, EXAMPLE) == ("transformer.h.1.mlp.c_fc",)
    image = of_transformers(
        "ViTForImageClassification", hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        image_size=32, patch_size=8,
    )  # fmt: skip
    layers = watermarks.get("uchida17").default_layers(image, torch.zeros(1, 3, 32, 32))
    assert [layer_weight(image, layer).shape for layer in layers] == [(48, 32), (32, 48)]


def test_norms_are_known_by_what_they_do() -> None:
    settings = {
        "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False,
    }  # fmt: skip
    pairs = norms_behind(of_transformers("LlamaForCausalLM", **settings), EXAMPLE)
    assert pairs == {
        "model.layers.0.self_attn.o_proj": "model.layers.0.post_attention_layernorm",
        "model.layers.0.mlp.down_proj": "model.layers.1.input_layernorm",
        "model.layers.1.self_attn.o_proj": "model.layers.1.post_attention_layernorm",
        "model.layers.1.mlp.down_proj": "model.norm",
    }
    gemma = of_transformers("GemmaForCausalLM", **settings, head_dim=8)
    assert norms_behind(gemma, EXAMPLE) == {}, "its scales are 1 + weight, and the signs of weights say nothing"
    for name in IN_THE_STREAM:
        with pytest.raises(WatermarkError, match=r"whose scale is its weight|can take a passport|hold 0"):
            watermarks.get(name).draw_key(gemma, TEXTS, message="x")
    with pytest.raises(WatermarkError, match="a linear layer before a norm"):
        watermarks.get("ipr_gan").draw_key(language_model(), TEXTS, message="x", layers=["blocks.0.gate"])


def test_reading_norm_scales_needs_an_input() -> None:
    scheme = watermarks.get("ipr_gan")
    key = scheme.draw_key(language_model(), TEXTS, message="x")
    with pytest.raises(WatermarkError, match="Give an example input"):
        scheme.extract(language_model(), key)


def test_a_key_cannot_say_where_units_are_read() -> None:
    scheme = watermarks.get("ipr_ic")
    key = scheme.draw_key(language_model(), TEXTS, message="x", layers=["blocks.0.gate"])
    key.settings["norms"]["blocks.0.gate"] = "blocks.0.up"  # type: ignore[index, call-overload]
    with pytest.raises(KeyFileError, match=r"but 'blocks\.0\.gate' is"):
        scheme.extract(language_model(), key, EXAMPLE)


@pytest.mark.parametrize(("name", "tensor"), [("ipr_ic", "trigger"), ("deepsigns", "samples")])
def test_texts_of_a_key_are_checked(name: str, tensor: str) -> None:
    scheme = watermarks.get(name)
    key = scheme.draw_key(language_model(), TEXTS, message="x")
    texts = key.tensors[tensor]
    assert texts.dtype == torch.int64
    for bad, complaint in (
        (texts - 200, "not negative"),
        (texts[:, :0], "short texts"),
        (texts[None], "short texts"),
        (texts.double(), "images"),
    ):
        key.tensors[tensor] = bad  # type: ignore[index]
        with pytest.raises(KeyFileError, match=complaint):
            scheme.extract(language_model(), key, EXAMPLE)
    key.tensors[tensor] = texts + 200  # type: ignore[index]
    with pytest.raises(WatermarkError, match="cannot take the key's images"):
        scheme.extract(language_model(), key, EXAMPLE)


@pytest.mark.parametrize("name", ["deepipr", "passport_aware"])
def test_passports_run_the_task_in_private(name: str) -> None:
    scheme = watermarks.get(name)
    assert isinstance(scheme, PassportScheme)
    result = embedded(name, language_model())
    before = watermarks.accuracy(result.model, TEXTS)
    private = scheme.private_accuracy(result.model, result.key, TEXTS)
    stranger = scheme.draw_key(language_model(), TEXTS, seed=5, message=Message.random(1, 64))
    assert private > scheme.private_accuracy(result.model, stranger, TEXTS) + 0.05
    assert watermarks.accuracy(result.model, TEXTS) == before, "the public path was disturbed"


class Sorted(nn.Module):
    """Texts to one of two classes, by layers of torch.nn alone."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, 32)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
        self.last = nn.Linear(32, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        scores: Tensor = self.last(self.encoder(self.tokens(input_ids)).mean(1))
        return scores


def test_texts_with_one_class_each() -> None:
    labels = (TEXTS.train_images > 100).float().mean(1).gt(0.5).long()
    data = Dataset("halves", 2, TEXTS.train_images, labels, TEXTS.train_images[:8], labels[:8])
    model = Sorted().eval()
    result = watermarks.get("deepsigns").embed(
        model, data, message=Message.random(1, 32), layers=["encoder.linear1"], options=QUICK
    )
    assert result.extraction.similarity == 1.0
    assert not model.training


def test_texts_are_no_pictures() -> None:
    with pytest.raises(DataError, match="moved or mirrored"):
        TEXTS.augmented(Augmentation(shift=1))
    with pytest.raises(DataError, match="no height"):
        TEXTS.resized(16)
    with pytest.raises(DataError, match="int64 labels"):
        Dataset("bad", 256, EXAMPLE, EXAMPLE[:, :3], EXAMPLE, EXAMPLE)
