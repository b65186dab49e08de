"""The pictures of the README: a real model's explorer and static view, light and dark.

After a change to a view, copy ``artefacts/readme_*.png`` to ``docs/``.
"""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.browser

CELLS = [
    """
import os, warnings
os.environ["HF_HUB_OFFLINE"] = "1"
warnings.filterwarnings("ignore")
import torch, dsexplore
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8,
                     num_key_value_heads=8, vocab_size=2048, use_cache=False)
column, row = ColwiseParallel, RowwiseParallel
plan = {f"self_attn.{k}_proj": column() for k in "qkv"} | {"self_attn.o_proj": row()}
plan |= {"mlp.gate_proj": column(), "mlp.up_proj": column(), "mlp.down_proj": row()}
with dsexplore.simulate(mesh="dp=2,tp=4", fake=True) as mesh:
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:
        parallelize_module(layer, mesh["tp"], plan)
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    with dsexplore.commtrace() as trace:
        tokens = torch.randint(0, 2048, (2, 512))
        model(input_ids=tokens, labels=tokens).loss.backward()
""".strip(),
    "explorer = trace.explore()\nexplorer",
    "trace",
]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pictures_of_a_real_model(lab: Any, page: Any, shot: Any, dark: bool) -> None:
    theme = "dark" if dark else "light"
    page.set_viewport_size({"width": 1280, "height": 1900})
    lab.write(f"pictures_{theme}.ipynb", CELLS)
    lab.open(page, f"pictures_{theme}.ipynb", dark=dark)
    lab.run_all(page)
    page.wait_for_selector(".dsx-tree[data-ready]")
    page.wait_for_selector(".dsx-plot[data-drawn]")
    before = page.get_attribute(".dsx-plot", "data-drawn")
    page.locator(".dsx-body .dsx-row", has_text="×8").first.click()
    page.wait_for_function("n => document.querySelector('.dsx-plot').dataset.drawn !== n", arg=before)
    page.mouse.move(0, 0)
    page.wait_for_timeout(400)
    pictures = {
        "explorer": page.locator(".dsx-explorer"),
        "static": page.locator(".jp-OutputArea-output .dsx:visible", has=page.locator(".part")).last,
    }
    for name, place in pictures.items():
        assert place.is_visible()
        assert "×8" in place.inner_text()
        assert shot(place, f"readme_{name}_{theme}").stat().st_size < 200_000
