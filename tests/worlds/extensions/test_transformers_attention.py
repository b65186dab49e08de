"""A model of transformers that asks for flash attention runs where the package is not installed."""

from __future__ import annotations

import pytest
import torch

import dsexplore


def test_a_model_that_asks_for_flash_attention_gets_its_stand_in() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, num_key_value_heads=2, vocab_size=32)
    with dsexplore.simulate(world_size=2), dsexplore.commtrace() as trace:
        model = LlamaForCausalLM._from_config(config, attn_implementation="flash_attention_2", dtype=torch.bfloat16)
        loss = model(torch.arange(8).reshape(1, 8), labels=torch.arange(8).reshape(1, 8)).loss
        loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert "flash_attn is not installed: a stand-in with the same shapes ran" in trace.info.notes
    with pytest.raises(ImportError, match="FlashAttention2"):
        LlamaForCausalLM._from_config(config, attn_implementation="flash_attention_2", dtype=torch.bfloat16)
