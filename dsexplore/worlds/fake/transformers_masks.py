"""Masks of transformers: the same on fake tensors as on real ones.

transformers leaves a mask out where no token is masked, and calls causal attention without one; but not for fake
tensors, by which it takes the program for one that torch.export reads. Attention then computes all scores in place of
half of them, and reads a mask that grows with the square of the sequence. Here fake tensors count as real ones, so
transformers reads whether sequences are packed, which follows from the positions, and whether a token is masked: no
token is, which is invented, and said.
"""

from __future__ import annotations

from dsexplore.torch_internals.fake_tensors import TRANSFORMERS_IS_FAKE
from dsexplore.torch_internals.patches import Entry, Patch

PATCHES: tuple[Entry, ...] = (
    Patch(
        TRANSFORMERS_IS_FAKE,
        "it makes a mask of every token on fake tensors",
        lambda _original, _parts: lambda x: False,
        when="fake",
        by_code=True,
    ),
)
