"""Text made fit for a page."""

from __future__ import annotations

import pytest

from dsexplore._internal.views.page import html


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("Net.layers.0.tok_embeddings.weight", ["Net.", "layers.0.", "tok_", "embeddings.", "weight"]),
        ("layers.*.self_attn", ["layers.*.", "self_", "attn"]),
        ("model.layers.0", ["model.", "layers.0"]),
        ("transformers/models/modeling_llama.py:392", ["transformers/", "models/", "modeling_", "llama.py:392"]),
        ("_S(0, 4)", ["_S(0, 4)"]),
        ("FSDP post_backward", ["FSDP post_", "backward"]),
        ("LlamaForCausalLM.model", ["LlamaForCausalLM.", "model"]),
        ("Qwen3VLMoeForConditionalGeneration", ["Qwen3VLMoe", "For", "Conditional", "Generation"]),
    ],
)
def test_a_name_is_broken_between_its_words(name: str, lines: list[str]) -> None:
    assert html.parted(name) == f"<bdi>{'<wbr>'.join(lines)}</bdi>"


def test_a_sentence_breaks_long_names_alone() -> None:
    assert html.prose("post_attention_layernorm 8 MiB", 0) == "post_attention_layernorm 8 MiB"
    long = "a_module_whose_name_is_too_long_for_a_column"
    assert html.prose(f"{long} 8 MiB", 0) == f"{long.replace('_', '_<wbr>')} 8 MiB"
    said = html.prose("16 all_reduces of 1.5 MiB in Net.mlp: Input(layouts=(Replicate(),)) & S(0)", 0)
    assert said == "16 all_reduces of 1.5 MiB in Net.<wbr>mlp: Input(<wbr>layouts=(Replicate(),)) &amp; S(0)"
