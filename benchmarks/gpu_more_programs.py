"""Further training steps on one GPU, which were predicted before they were measured; see `gpu_programs`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from gpu_programs import LLAMA_1B, Program, Step, images, llama, made, made_llama, tokens_of, trained
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    ConvNextConfig,
    ConvNextForImageClassification,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    Dinov2Config,
    Dinov2ForImageClassification,
    Gemma2Config,
    OPTConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    RobertaConfig,
    RobertaForSequenceClassification,
    SegformerConfig,
    SegformerForSemanticSegmentation,
    SwinConfig,
    SwinForImageClassification,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
    WhisperConfig,
    WhisperForConditionalGeneration,
)


def causal(config: Any, attention: str = "sdpa") -> nn.Module:
    """A language model on the GPU; its attention is torch's, or ``"eager"``, that of transformers."""
    config.use_cache = False
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(config, attn_implementation=attention)


def qwen3() -> Step:
    """Qwen3 0.6B in fp32 under bf16 autocast, whose gradients are clipped."""
    config = Qwen3Config(
        vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, tie_word_embeddings=True, max_position_embeddings=4096,
    )  # fmt: skip
    model = causal(config)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    return trained(model, optimizer, tokens_of(151936, 4, 2048), autocast=True, clip=True)


def gemma2() -> Step:
    """Eight layers of Gemma 2 2B in bf16, whose attention limits its scores, with fused AdamW and clipped gradients."""
    config = Gemma2Config(
        vocab_size=256000, hidden_size=2304, intermediate_size=9216, num_hidden_layers=8, num_attention_heads=8,
        num_key_value_heads=4, head_dim=256, max_position_embeddings=4096,
    )  # fmt: skip
    model = causal(config, attention="eager").to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return trained(model, optimizer, tokens_of(256000, 1, 4096), clip=True)


def moe() -> Step:
    """Six layers of a Qwen3 with 64 experts, eight for each token, in bf16 with fused AdamW."""
    config = Qwen3MoeConfig(
        vocab_size=32000, hidden_size=2048, num_hidden_layers=6, num_attention_heads=32, num_key_value_heads=4,
        head_dim=128, num_experts=64, num_experts_per_tok=8, moe_intermediate_size=768, max_position_embeddings=4096,
    )  # fmt: skip
    model = causal(config).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return trained(model, optimizer, tokens_of(32000, 4, 2048))


def opt() -> Step:
    """OPT 1.3B in fp32."""
    config = OPTConfig(
        hidden_size=2048, ffn_dim=8192, num_hidden_layers=24, num_attention_heads=32, word_embed_proj_dim=2048,
        max_position_embeddings=2048,
    )  # fmt: skip
    model = causal(config)
    optimizer = torch.optim.AdamW(model.parameters())
    return trained(model, optimizer, tokens_of(config.vocab_size, 2, 1024))


class Adapted(nn.Module):
    """A frozen product and its adapter."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        self.linear = linear
        self.down = nn.Linear(linear.in_features, rank, bias=False, device="cuda", dtype=torch.bfloat16)
        self.up = nn.Linear(rank, linear.out_features, bias=False, device="cuda", dtype=torch.bfloat16)
        self.dropout = nn.Dropout(0.05)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.linear(inputs) + self.up(self.down(self.dropout(inputs))) * 2.0


def lora() -> Step:
    """A Llama 3B in bf16, checkpointed, of which adapters of rank 16 train."""
    model = made_llama(
        layers=28, width=3072, hidden=8192, heads=24, key_value_heads=8, vocabulary=128256, sequence=4096
    ).to(torch.bfloat16)
    model.requires_grad_(False)
    for layer in model.model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.self_attn, name, Adapted(getattr(layer.self_attn, name), 16))
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    return trained(model, optimizer, tokens_of(128256, 4, 2048))


def whole_llama() -> Step:
    """A Llama 1B in bf16, compiled as a whole with its loss."""
    model = made_llama(**LLAMA_1B, sequence=2048).to(torch.bfloat16)
    model.compile()
    return trained(model, torch.optim.AdamW(model.parameters(), fused=True), tokens_of(128256, 4, 2048))


def classified(vocabulary: int, batch: int, sequence: int) -> dict[str, Any]:
    """Random tokens without those that mean something, and one of two labels for each sequence."""
    tokens = torch.randint(3, vocabulary, (batch, sequence), device="cuda")
    labels = torch.randint(2, (batch,), device="cuda")
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}


def roberta() -> Step:
    """RoBERTa base as a classifier, in fp32 under bf16 autocast, whose gradients are clipped."""
    config = RobertaConfig(vocab_size=50265, num_labels=2, max_position_embeddings=514)
    model = made(RobertaForSequenceClassification, config)
    inputs = classified(50265, 64, 128)
    return trained(model, torch.optim.AdamW(model.parameters()), inputs, autocast=True, clip=True)


def deberta() -> Step:
    """DeBERTa v3 base as a classifier, in fp32 under bf16 autocast."""
    config = DebertaV2Config(
        vocab_size=128100, hidden_size=768, num_hidden_layers=12, num_attention_heads=12, intermediate_size=3072,
        relative_attention=True, position_buckets=256, pos_att_type=["p2c", "c2p"], share_att_key=True,
        norm_rel_ebd="layer_norm", max_position_embeddings=512, num_labels=2,
    )  # fmt: skip
    model = made(DebertaV2ForSequenceClassification, config)
    return trained(model, torch.optim.AdamW(model.parameters()), classified(128100, 32, 256), autocast=True)


def whisper() -> Step:
    """Whisper small in fp32 under bf16 autocast."""
    config = WhisperConfig(
        d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12, decoder_attention_heads=12,
        encoder_ffn_dim=3072, decoder_ffn_dim=3072, vocab_size=51865, use_cache=False,
    )  # fmt: skip
    model = made(WhisperForConditionalGeneration, config)
    inputs = {
        "input_features": torch.randn(16, 80, 3000, device="cuda"),
        "labels": torch.randint(50000, (16, 128), device="cuda"),
    }
    return trained(model, torch.optim.AdamW(model.parameters()), inputs, autocast=True)


def wav2vec() -> Step:
    """wav2vec 2.0 base in fp32 under bf16 autocast."""
    config = Wav2Vec2Config(mask_time_prob=0.0, mask_feature_prob=0.0, layerdrop=0.0, vocab_size=32)
    model = made(Wav2Vec2ForCTC, config)
    inputs = {
        "input_values": torch.randn(8, 160000, device="cuda"),
        "labels": torch.randint(1, 32, (8, 60), device="cuda"),
    }
    return trained(model, torch.optim.AdamW(model.parameters()), inputs, autocast=True)


def dinov2() -> Step:
    """DINOv2 large as a classifier, in fp32 under bf16 autocast."""
    config = Dinov2Config(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, num_labels=1000, image_size=518, patch_size=14
    )
    model = made(Dinov2ForImageClassification, config)
    return trained(model, torch.optim.AdamW(model.parameters()), images(32), autocast=True)


def convnext() -> Step:
    """ConvNeXt base in fp32 under bf16 autocast."""
    config = ConvNextConfig(hidden_sizes=[128, 256, 512, 1024], depths=[3, 3, 27, 3], num_labels=1000)
    model = made(ConvNextForImageClassification, config)
    return trained(model, torch.optim.AdamW(model.parameters()), images(64), autocast=True)


def swin() -> Step:
    """Swin base in fp32 under bf16 autocast."""
    config = SwinConfig(embed_dim=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32], num_labels=1000)
    model = made(SwinForImageClassification, config)
    return trained(model, torch.optim.AdamW(model.parameters()), images(64), autocast=True)


def segformer() -> Step:
    """SegFormer B2 in fp32 under bf16 autocast."""
    config = SegformerConfig(
        depths=[3, 4, 6, 3], hidden_sizes=[64, 128, 320, 512], decoder_hidden_size=768, num_labels=150
    )
    model = made(SegformerForSemanticSegmentation, config)
    inputs = {
        "pixel_values": torch.randn(8, 3, 512, 512, device="cuda"),
        "labels": torch.randint(150, (8, 512, 512), device="cuda"),
    }
    return trained(model, torch.optim.AdamW(model.parameters()), inputs, autocast=True)


def fp32_llama() -> Step:
    """Eight layers of a Llama in fp32, whose products may be TF32; gradients are clipped."""
    torch.backends.cuda.matmul.allow_tf32 = True
    model = made_llama(layers=8, width=2048, hidden=5632, heads=16, key_value_heads=16, vocabulary=32000, sequence=2048)
    return trained(model, torch.optim.AdamW(model.parameters()), tokens_of(32000, 2, 2048), clip=True)


PROGRAMS: Mapping[str, Program] = MappingProxyType(
    {
        "qwen3 0.6b, 4×2048": qwen3,
        "8 layers of gemma2 2b, 1×4096": gemma2,
        "6 layers of qwen3 moe, 4×2048": moe,
        "opt 1.3b in fp32, 2×1024": opt,
        "lora of llama 3b, 4×2048": lora,
        "llama 1b, 4×2048, compiled whole": whole_llama,
        "roberta base, 64×128": roberta,
        "deberta v3 base, 32×256": deberta,
        "whisper small, 16": whisper,
        "wav2vec2 base, 8×10 s": wav2vec,
        "dinov2 large, 32": dinov2,
        "convnext base, 64": convnext,
        "swin base, 64": swin,
        "segformer b2, 8×512": segformer,
        "llama 1b, 1×2048": partial(llama, **LLAMA_1B, batch=1, sequence=2048),
        "8 layers in tf32, 2×2048": fp32_llama,
    }
)
