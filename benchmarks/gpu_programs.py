"""Training steps on one GPU, in torch's and transformers' own words: what `gpu_step` measures and predicts.

Nothing of dsexplore is imported here, so the programs run where it is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    ResNetConfig,
    ResNetForImageClassification,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

Step = Callable[[], None]
Program = Callable[[], Step]


def made(kind: type[nn.Module], config: Any) -> Any:
    """A model of a configuration, on the GPU."""
    with torch.device("cuda"):
        return kind(config)


def made_llama(
    *, layers: int, width: int, hidden: int, heads: int, key_value_heads: int, vocabulary: int, sequence: int
) -> Any:
    """A Llama in fp32, on the GPU."""
    config = LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=hidden,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        vocab_size=vocabulary,
        max_position_embeddings=sequence,
        use_cache=False,
        attn_implementation="sdpa",
    )
    return made(LlamaForCausalLM, config)


def llama(
    *, vocabulary: int, batch: int, sequence: int, checkpointing: bool = False, compiled: bool = False, **sizes: int
) -> Step:
    """A Llama whose weights, gradients and AdamW state are bf16; for its sizes see `made_llama`."""
    model = made_llama(vocabulary=vocabulary, sequence=sequence, **sizes).to(torch.bfloat16)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if compiled:
        for layer in model.model.layers:
            layer.compile()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return trained(model, optimizer, tokens_of(vocabulary, batch, sequence))


def gpt2(*, layers: int, width: int, heads: int, batch: int, sequence: int) -> Step:
    """A GPT-2 in fp32 under bf16 autocast, whose gradients are clipped."""
    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=heads,
        n_positions=sequence,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = made(GPT2LMHeadModel, config)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    return trained(model, optimizer, tokens_of(config.vocab_size, batch, sequence), autocast=True, clip=True)


def bert(*, batch: int, sequence: int) -> Step:
    """BERT large in fp32 under bf16 autocast."""
    config = BertConfig(
        num_hidden_layers=24,
        hidden_size=1024,
        num_attention_heads=16,
        intermediate_size=4096,
        attn_implementation="sdpa",
    )
    model = made(BertForMaskedLM, config)
    optimizer = torch.optim.AdamW(model.parameters())
    return trained(model, optimizer, tokens_of(config.vocab_size, batch, sequence), autocast=True)


def t5(*, batch: int, sequence: int) -> Step:
    """T5 large in bf16, with fused AdamW."""
    config = T5Config(d_model=1024, d_kv=64, d_ff=4096, num_layers=24, num_heads=16, decoder_start_token_id=0)
    model = made(T5ForConditionalGeneration, config).to(torch.bfloat16)
    tokens = torch.randint(config.vocab_size, (batch, sequence), device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return trained(model, optimizer, {"input_ids": tokens, "labels": tokens[:, : sequence // 4].contiguous()})


def vit(*, batch: int) -> Step:
    """A ViT-L/16 in fp32 under bf16 autocast, on images of 224 × 224."""
    config = ViTConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        num_labels=1000,
        attn_implementation="sdpa",
    )
    model = made(ViTForImageClassification, config)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    return trained(model, optimizer, images(batch), autocast=True)


def resnet(*, batch: int) -> Step:
    """A ResNet-50 in fp32 under bf16 autocast with SGD, on images of 224 × 224, channels last."""
    model = made(ResNetForImageClassification, ResNetConfig(num_labels=1000)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    inputs = images(batch)
    inputs["pixel_values"] = inputs["pixel_values"].to(memory_format=torch.channels_last)
    return trained(model, optimizer, inputs, autocast=True)


def mlp(*, width: int, layers: int, batch: int) -> Step:
    """Products and ReLUs alone, in bf16, with SGD."""
    blocks = [part for _ in range(layers) for part in (nn.Linear(width, width, bias=False), nn.ReLU())]
    model = nn.Sequential(*blocks).to("cuda", torch.bfloat16)
    inputs = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        F.mse_loss(model(inputs), inputs).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def tokens_of(vocabulary: int, batch: int, sequence: int) -> dict[str, Any]:
    """Random tokens, which are their own labels."""
    tokens = torch.randint(vocabulary, (batch, sequence), device="cuda")
    return {"input_ids": tokens, "labels": tokens}


def images(batch: int) -> dict[str, Any]:
    """Random images and their labels."""
    labels = torch.randint(1000, (batch,), device="cuda")
    return {"pixel_values": torch.randn(batch, 3, 224, 224, device="cuda"), "labels": labels}


def trained(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Mapping[str, Any],
    *,
    autocast: bool = False,
    clip: bool = False,
) -> Step:
    """A step of a model that returns its own loss."""
    model.train()

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = model(**inputs).loss
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


LLAMA_1B: Mapping[str, Any] = MappingProxyType(
    {"layers": 16, "width": 2048, "hidden": 8192, "heads": 32, "key_value_heads": 8, "vocabulary": 128256}
)
LLAMA_8B_PART: Mapping[str, Any] = MappingProxyType(
    {"layers": 8, "width": 4096, "hidden": 14336, "heads": 32, "key_value_heads": 8, "vocabulary": 32000}
)

PROGRAMS: Mapping[str, Program] = MappingProxyType(
    {
        "llama 1b, 4×2048": partial(llama, **LLAMA_1B, batch=4, sequence=2048),
        "llama 1b, 1×8192": partial(llama, **LLAMA_1B, batch=1, sequence=8192),
        "llama 1b, 16×2048, checkpointed": partial(llama, **LLAMA_1B, batch=16, sequence=2048, checkpointing=True),
        "8 layers of 8b, 4×4096": partial(llama, **LLAMA_8B_PART, batch=4, sequence=4096),
        "8 layers of 8b, 4×4096, compiled": partial(llama, **LLAMA_8B_PART, batch=4, sequence=4096, compiled=True),
        "gpt2, 16×1024": partial(gpt2, layers=12, width=768, heads=12, batch=16, sequence=1024),
        "gpt2, 1×256": partial(gpt2, layers=12, width=768, heads=12, batch=1, sequence=256),
        "gpt2 xl, 2×1024": partial(gpt2, layers=48, width=1600, heads=25, batch=2, sequence=1024),
        "bert large, 32×512": partial(bert, batch=32, sequence=512),
        "t5 large, 8×512": partial(t5, batch=8, sequence=512),
        "vit large, 64": partial(vit, batch=64),
        "resnet 50, 256": partial(resnet, batch=256),
        "products, 8192": partial(mlp, width=8192, layers=8, batch=8192),
        "products, 1024": partial(mlp, width=1024, layers=32, batch=4096),
    }
)
