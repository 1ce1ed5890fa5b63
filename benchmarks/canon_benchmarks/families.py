"""Families of transformers, each by a small member of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from canon.graph import arguments
from canon.io.folder.examples import config_example
from canon.zoo.compatibility import import_diffusers, import_transformers

_TEXT: Final = {
    "vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
_GROUPED: Final = {**_TEXT, "num_key_value_heads": 2}
_HEADED: Final = {**_GROUPED, "head_dim": 8}
_IMAGE: Final = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
_SEQUENCES: Final = {
    "vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
}  # fmt: skip
_SOUND: Final = {
    **_TEXT, "conv_dim": [16, 16], "conv_kernel": [4, 4], "conv_stride": [2, 2], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """A family by a small member of it."""

    architecture: str
    config: dict[str, Any]
    hidden: int
    """Hidden spaces of MLPs, experts and gates: each must be free."""

    package: str = "transformers"


FAMILIES: Final[dict[str, Family]] = {
    "BERT": Family("BertForMaskedLM", _TEXT, 2),
    "RoBERTa": Family("RobertaForMaskedLM", _TEXT, 2),
    "DistilBERT": Family(
        "DistilBertForMaskedLM", {"vocab_size": 99, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4}, 2
    ),
    "GPT-2": Family(
        "GPT2LMHeadModel",
        {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48, "n_positions": 64},
        2,
    ),
    "GPT-NeoX": Family("GPTNeoXForCausalLM", _TEXT, 2),
    "OPT": Family(
        "OPTForCausalLM",
        {"vocab_size": 99, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "word_embed_proj_dim": 32, "max_position_embeddings": 64},
        2,
    ),
    "BLOOM": Family("BloomForCausalLM", {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4}, 2),
    "Llama": Family("LlamaForCausalLM", _GROUPED, 2),
    "Mistral": Family("MistralForCausalLM", _GROUPED, 2),
    "Qwen2": Family("Qwen2ForCausalLM", _GROUPED, 2),
    "Qwen3": Family("Qwen3ForCausalLM", _HEADED, 2),
    "Gemma": Family("GemmaForCausalLM", _HEADED, 2),
    "Phi-3": Family("Phi3ForCausalLM", {**_GROUPED, "pad_token_id": 0}, 2),
    "Mixtral": Family("MixtralForCausalLM", {**_GROUPED, "num_local_experts": 4}, 8),
    "Qwen2-MoE": Family(
        "Qwen2MoeForCausalLM",
        {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
         "shared_expert_intermediate_size": 40},
        10,
    ),
    "T5": Family(
        "T5ForConditionalGeneration",
        {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
        4,
    ),
    "ViT": Family("ViTForImageClassification", _IMAGE, 2),
    "DeiT": Family("DeiTForImageClassification", _IMAGE, 2),
    "Swin": Family(
        "SwinForImageClassification",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        4,
    ),
    "CLIP": Family(
        "CLIPModel",
        {"text_config": {**_TEXT, "max_position_embeddings": 16}, "vision_config": _IMAGE, "projection_dim": 24},
        4,
    ),
    "Whisper": Family(
        "WhisperForConditionalGeneration",
        {"vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_source_positions": 20,
         "max_target_positions": 20, "num_mel_bins": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
         "decoder_start_token_id": 1},
        4,
    ),
    "DETR": Family(
        "DetrForObjectDetection",
        {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
         "encoder_attention_heads": 4, "decoder_attention_heads": 4, "num_queries": 5,
         "use_pretrained_backbone": False},
        2,
    ),
    "SegFormer": Family(
        "SegformerForSemanticSegmentation",
        {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [16, 32],
         "patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [2, 4], "mlp_ratios": [2, 2],
         "decoder_hidden_size": 24, "num_labels": 5},
        2,
    ),
    "ConvNeXt": Family(
        "ConvNextForImageClassification",
        {"hidden_sizes": [8, 16], "depths": [2, 2], "num_stages": 2, "patch_size": 4},
        4,
    ),
    "Mamba": Family(
        "MambaForCausalLM",
        {"vocab_size": 99, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2, "conv_kernel": 4},
        2,
    ),
    "RWKV": Family(
        "RwkvForCausalLM",
        {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "attention_hidden_size": 32,
         "intermediate_size": 48, "context_length": 16, "rescale_every": 0},
        2,
    ),
    "DiT": Family(
        "DiTTransformer2DModel",
        {"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 4, "out_channels": 8, "num_layers": 2,
         "sample_size": 8, "patch_size": 2, "num_embeds_ada_norm": 10, "norm_num_groups": 4},
        2,
        "diffusers",
    ),
    "SD UNet": Family(
        "UNet2DConditionModel",
        {"sample_size": 8, "in_channels": 4, "out_channels": 4, "block_out_channels": [16, 32], "layers_per_block": 1,
         "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
         "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"], "cross_attention_dim": 24, "attention_head_dim": 4,
         "norm_num_groups": 4},
        4,
        "diffusers",
    ),
    "GPT-J": Family(
        "GPTJForCausalLM",
        {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48, "rotary_dim": 4, "n_positions": 64},
        2,
    ),
    "CodeGen": Family(
        "CodeGenForCausalLM",
        {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 48, "rotary_dim": 4, "n_positions": 64,
         "n_ctx": 64},
        2,
    ),
    "Falcon": Family(
        "FalconForCausalLM",
        {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
        2,
    ),
    "MPT": Family(
        "MptForCausalLM",
        {"vocab_size": 99, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 64, "expansion_ratio": 2},
        2,
    ),
    "StableLM": Family("StableLmForCausalLM", _GROUPED, 2),
    "Starcoder2": Family("Starcoder2ForCausalLM", _GROUPED, 2),
    "Cohere": Family("CohereForCausalLM", _GROUPED, 2),
    "OLMo": Family("OlmoForCausalLM", _GROUPED, 2),
    "OLMo 2": Family("Olmo2ForCausalLM", _GROUPED, 2),
    "Granite": Family("GraniteForCausalLM", _GROUPED, 2),
    "Phi": Family("PhiForCausalLM", _GROUPED, 2),
    "Gemma 2": Family("Gemma2ForCausalLM", _HEADED, 2),
    "Gemma 3": Family(
        "Gemma3ForCausalLM",
        {**_HEADED, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
        2,
    ),
    "PhiMoE": Family("PhimoeForCausalLM", {**_GROUPED, "num_local_experts": 4}, 8),
    "Qwen3-MoE": Family(
        "Qwen3MoeForCausalLM",
        {**_HEADED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48},
        8,
    ),
    "DeepSeek-V3": Family(
        "DeepseekV3ForCausalLM",
        {**_TEXT, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
         "moe_intermediate_size": 40, "first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16,
         "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8, "num_key_value_heads": 4},
        6,
    ),
    "Jamba": Family(
        "JambaForCausalLM",
        {**_GROUPED, "num_experts": 4, "num_experts_per_tok": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
         "expert_layer_period": 2, "expert_layer_offset": 1, "mamba_d_state": 4, "use_mamba_kernels": False,
         "mamba_dt_rank": 4},
        5,
    ),
    "ELECTRA": Family("ElectraForMaskedLM", {**_TEXT, "embedding_size": 24}, 2),
    "DeBERTa": Family("DebertaForMaskedLM", _TEXT, 2),
    "DeBERTa v2": Family("DebertaV2ForMaskedLM", _TEXT, 2),
    "ALBERT": Family("AlbertForMaskedLM", {**_TEXT, "embedding_size": 24}, 1),
    "XLNet": Family("XLNetLMHeadModel", {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}, 2),
    "BART": Family("BartForConditionalGeneration", _SEQUENCES, 4),
    "Pegasus": Family("PegasusForConditionalGeneration", _SEQUENCES, 4),
    "BEiT": Family("BeitForImageClassification", _IMAGE, 2),
    "Data2Vec": Family("Data2VecVisionForImageClassification", _IMAGE, 2),
    "DINOv2": Family("Dinov2ForImageClassification", _IMAGE, 2),
    "SigLIP": Family(
        "SiglipModel", {"text_config": {**_TEXT, "max_position_embeddings": 16}, "vision_config": _IMAGE}, 4
    ),
    "wav2vec 2.0": Family("Wav2Vec2ForCTC", _SOUND, 2),
    "HuBERT": Family("HubertForCTC", _SOUND, 2),
    "TimeSformer": Family("TimesformerForVideoClassification", {**_IMAGE, "num_frames": 2}, 2),
    "GPT-OSS": Family(
        "GptOssForCausalLM",
        {**_HEADED, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
        8,
    ),
    "LongT5": Family(
        "LongT5ForConditionalGeneration",
        {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
        4,
    ),
    "Apertus": Family("ApertusForCausalLM", _GROUPED, 2),
    "FalconMamba": Family(
        "FalconMambaForCausalLM",
        {"vocab_size": 99, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2, "conv_kernel": 4},
        2,
    ),
    "LSTM": Family("LSTM", {"input_size": 24, "hidden_size": 32, "batch_first": True}, 1, "torch"),
    "GRU": Family("GRU", {"input_size": 24, "hidden_size": 32, "batch_first": True}, 1, "torch"),
    "LSTM, 2 layers": Family(
        "LSTM", {"input_size": 24, "hidden_size": 32, "batch_first": True, "num_layers": 2}, 2, "torch"
    ),
    "GRU, 2 layers": Family(
        "GRU", {"input_size": 24, "hidden_size": 32, "batch_first": True, "num_layers": 2}, 2, "torch"
    ),
}  # fmt: skip
"""Those of the paper's successors that most models of today belong to."""


class Reader(nn.Module):
    """Token ids through a recurrent layer to scores over the vocabulary."""

    def __init__(self, layer: nn.Module, inputs: int, hidden: int) -> None:
        super().__init__()
        self.embedding, self.layer, self.head = nn.Embedding(99, inputs), layer, nn.Linear(hidden, 99)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Scores for the next token, at every position."""
        result: torch.Tensor = self.head(self.layer(self.embedding(input_ids))[0])
        return result


def build(family: Family, seed: int = 0) -> tuple[nn.Module, tuple[Any, ...]]:
    """A member of a family with random weights, and an example made from its config."""
    torch.manual_seed(seed)
    if family.package == "torch":
        layer = getattr(nn, family.architecture)(**family.config)
        reader = Reader(layer, family.config["input_size"], family.config["hidden_size"]).eval()
        return reader, (torch.arange(24).view(2, 12) * 4,)
    package = import_transformers() if family.package == "transformers" else import_diffusers()
    kind = getattr(package, family.architecture)
    if family.package == "transformers":
        config = kind.config_class(**family.config)
        config.use_cache = False
        model: nn.Module = kind(config).eval()
    else:
        model = kind(**family.config).eval()
    found = arguments(model, config_example(model))
    return model, found if isinstance(found, tuple) else (found,)
