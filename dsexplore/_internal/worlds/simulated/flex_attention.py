"""FlexAttention outside compiled code: torch's plain form of it, forward and backward.

``flex_attention`` compiles itself where the program has not compiled it, which torch refuses while a dispatch mode is
entered, as in a simulated world. Its plain form has the same shapes and values, with the whole matrix of scores in
memory.
"""

from __future__ import annotations

from dsexplore._internal.torch_internals import modules
from dsexplore._internal.torch_internals.patches import Patch

PATCHES = (
    Patch(
        modules.FLEX_ATTENTION_UNCOMPILED,
        "it compiles itself, which torch refuses under a dispatch mode",
        lambda _original, _parts: True,
        on_import=True,
    ),
)
