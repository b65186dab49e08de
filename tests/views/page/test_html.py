"""Escaping, shortening and breaking of names for a page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsexplore
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
    assert html.prose("post_attention_layernorm 8 MiB", longest=0) == "post_attention_layernorm 8 MiB"
    long = "a_module_whose_name_is_too_long_for_a_column"
    assert html.prose(f"{long} 8 MiB", longest=0) == f"{long.replace('_', '_<wbr>')} 8 MiB"
    said = html.prose("16 all_reduces of 1.5 MiB in Net.mlp: Input(layouts=(Replicate(),)) & S(0)", longest=0)
    assert said == "16 all_reduces of 1.5 MiB in Net.<wbr>mlp: Input(<wbr>layouts=(Replicate(),)) &amp; S(0)"


_SELECTORS = re.compile(r"(?:^|[{},;/])([^{},;@/]*)(?=[{,])", re.M)
_CLASS = re.compile(r"\.([A-Za-z][\w-]*)")
_ATTRIBUTE, _NAME = re.compile(r"class=\\?[\"']([^\"'>]*)"), re.compile(r"[\w-]+")
_LONGEST_NAMES = 40
"""Maximal length of a string that may be a list of classes; in longer strings only ``class=`` is searched."""
_NOT_OURS = ("jp-", "lm-", "widget-", "marimo-", "plotly", "js-plotly", "main-svg")


def _strings(path: Path) -> Iterator[str]:
    """Yield the strings of a Python file, docstrings too, or the text of another one."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        yield text
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _classes() -> tuple[set[str], set[str]]:
    """Return the classes that a style of the views has a rule for, and those that markup or a script names."""
    styled: set[str] = set()
    used: set[str] = set()
    for path in (Path(dsexplore.__file__).parent / "_internal" / "views").rglob("*.*"):
        if path.suffix not in (".py", ".js", ".css"):
            continue
        for text in _strings(path):
            if path.suffix == ".css" or (path.suffix == ".py" and "{" in text and re.search(r"\.dsx|^[.@:]", text)):
                styled |= {name for selector in _SELECTORS.findall(text) for name in _CLASS.findall(selector)}
            else:
                named = _ATTRIBUTE.findall(text) if path.suffix == ".py" else [text]
                used |= set(_NAME.findall(" ".join(named if len(text) > _LONGEST_NAMES else [text])))
    return styled, used


def test_each_class_with_a_style_is_used() -> None:
    styled, used = _classes()
    assert len(styled) > 100
    assert [name for name in sorted(styled - used) if not name.startswith(_NOT_OURS)] == []
