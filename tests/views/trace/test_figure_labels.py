"""Names as labels of figures.

Modules: ``views/trace/figure_spec.py``.
"""

from __future__ import annotations

from dsexplore._internal.views.trace.figure_spec import unique


def test_a_long_name_keeps_its_end_from_a_whole_word_on() -> None:
    assert unique(["LlamaForCausalLM.model.layers.*.mlp.down_proj", "x" * 40, "Net.head"]) == [
        "…model.layers.*.mlp.down_proj",
        f"…{'x' * 33}",
        "Net.head",
    ]


def test_names_that_end_alike_are_numbered() -> None:
    assert unique([f"{'x' * 40}{i}.weight" for i in range(2)]) == ["…weight", "…weight (2)"]
