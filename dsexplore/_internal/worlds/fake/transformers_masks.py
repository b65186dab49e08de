"""Attention masks of transformers: the same on fake tensors as on real ones.

On real tensors, transformers passes no mask if no token is masked, and calls causal attention. On fake tensors it
assumes that torch.export is tracing and always builds a mask: attention then computes all scores instead of half of
them, and reads a mask that grows with the square of the sequence length. Here transformers treats fake tensors as real
ones. It reads two values: whether sequences are packed, which follows from the positions, and whether a token is
masked. The second is unknown; it is assumed that none is, with a remark.
"""

from __future__ import annotations

from dsexplore._internal.torch_internals.names import TorchName
from dsexplore._internal.torch_internals.patches import Entry, Patch

PATCHES: tuple[Entry, ...] = (
    Patch(
        TorchName("transformers.utils.import_utils:is_fake_tensor"),
        "it makes a mask of every token on fake tensors",
        lambda _original, _parts: lambda x: False,
        when="fake",
        by_code=True,
    ),
)
