"""Masks of transformers: the same on fake tensors as on real ones.

transformers leaves a mask out where no token is masked, and calls causal attention without one; but not for fake
tensors, by which it takes the program for one that torch.export reads. Attention then computes all scores in place of
half of them, and reads a mask that grows with the square of the sequence. Here fake tensors count as real ones, so
transformers reads whether sequences are packed, which follows from the positions, and whether a token is masked: no
token is, which is invented, and said.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType

from dsexplore.torch_internals.on_import import on_import
from dsexplore.torch_internals.patches import Patches

_MODULE = "transformers.utils.import_utils"


def patch_masks(patches: Patches) -> None:
    """transformers takes fake tensors for real ones, now or as soon as it is imported."""
    on_import(patches, _MODULE, partial(_patch, patches))


def _patch(patches: Patches, module: ModuleType) -> None:
    is_fake = getattr(module, "is_fake_tensor", None)  # of versions that ask for it
    if is_fake is not None:
        patches.function(is_fake, lambda _original: lambda x: False)
