"""FlexAttention outside compiled code: torch's plain form of it, forward and backward.

``flex_attention`` compiles itself where the program has not compiled it, which torch refuses while a dispatch mode is
entered, as in a simulated world. Its plain form has the same shapes and values, with the whole matrix of scores in
memory.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType

from dsexplore.torch_internals.on_import import on_import
from dsexplore.torch_internals.patches import Patches


def patch_flex_attention(patches: Patches) -> None:
    """``flex_attention`` compiles nothing by itself from now on, now or as soon as it is imported."""
    on_import(patches, "torch.nn.attention.flex_attention", partial(_patch, patches))


def _patch(patches: Patches, module: ModuleType) -> None:
    patches.attribute(module, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
