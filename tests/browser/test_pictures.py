"""The pictures of the README: headline, timeline and tree of a real model's step, and its explorer, light and dark.

Modules: ``views/trace/``, ``views/explorer/``.

After a change to a view, copy ``artefacts/readme_*.png`` to ``docs/``.
"""

from __future__ import annotations

from collections.abc import Iterator
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


WORDS_ARE_LIGHT = """() => [".dsx-tree", ".dsx-plot .dsx-of", ".jp-OutputArea-output .dsx .headline"].every((place) => {
    const { color } = getComputedStyle(document.querySelector(place));
    return color.match(/[0-9.]+/g).slice(0, 3).reduce((a, b) => a + +b, 0) > 600;
})"""


@pytest.fixture
def sharp(browser: Any) -> Iterator[Any]:
    """Yield a page with four pixels where others have one."""
    context = browser.new_context(viewport={"width": 1360, "height": 1900}, device_scale_factor=2)
    context.set_default_timeout(180_000)
    yield context.new_page()
    context.close()


def top_of(view: Any) -> dict[str, float]:
    """Return the place of a static view's headline, timeline and tree."""
    whole, tree = view.bounding_box(), view.locator(".tree").bounding_box()
    return {**whole, "height": tree["y"] + tree["height"] - whole["y"] + 6}


def test_pictures_of_a_real_model(lab: Any, sharp: Any, shot: Any) -> None:
    page = sharp
    lab.write("pictures.ipynb", CELLS)
    lab.open(page, "pictures.ipynb")
    lab.run_all(page)
    page.wait_for_selector(".dsx-tree[data-ready]")
    page.wait_for_selector(".dsx-plot[data-drawn]")
    page.wait_for_selector("canvas[data-drawn]")
    before = page.get_attribute(".dsx-plot", "data-drawn")
    page.locator(".dsx-body .dsx-row", has_text="×8").first.click()
    page.wait_for_function("n => document.querySelector('.dsx-plot').dataset.drawn !== n", arg=before)
    view = page.locator(".jp-OutputArea-output .dsx:visible", has=page.locator(".part")).last
    view.locator("details", has_text="×8").last.locator("> summary").click()  # the layers' own row
    page.mouse.move(0, 0)
    explorer = page.locator(".dsx-explorer")
    for shown in (explorer, view):
        shown.evaluate("(element) => { element.style.padding = '10px' }")  # no text at the edge of a picture
    assert "×8" in explorer.inner_text()
    for theme in ("light", "dark"):
        if theme == "dark":
            lab.set_theme(page, dark=True)
            page.wait_for_function(WORDS_ARE_LIGHT)
            # drawn over the page while a theme is loaded
            page.wait_for_selector("#jupyterlab-splash", state="detached")
        page.wait_for_timeout(400)
        taken = [shot(explorer, f"readme_explorer_{theme}", scale="css")]
        view.scroll_into_view_if_needed()
        clip = top_of(view)
        for seen in (".headline .bar", ".tl", ".thin"):
            found = view.locator(seen).first.bounding_box()
            assert clip["y"] <= found["y"] <= clip["y"] + clip["height"] - found["height"], seen
        taken.append(shot(page, f"readme_step_{theme}", clip=clip))
        for path in taken:
            assert path.stat().st_size < 500_000
