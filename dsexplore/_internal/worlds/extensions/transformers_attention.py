"""Attention of transformers: flash attention without its package, and masks on fake tensors as on real ones.

**Flash attention.** With ``attn_implementation="flash_attention_2"`` transformers refuses a model if the package
``flash_attn`` is not installed. In a world of GPUs it accepts the model, and imports the stand-in for the package.

**Masks.** On real tensors, transformers passes no mask if no token is masked, and calls causal attention. On fake
tensors it assumes that torch.export is tracing and always builds a mask: attention then computes all scores instead of
half of them, and reads a mask that grows with the square of the sequence length. Here transformers treats fake tensors
as real ones. It reads two values: whether sequences are packed, which follows from the positions, and whether any token
is masked. The latter is unknown on fake tensors; it is assumed that none is, and a remark says so.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib.machinery import PathFinder
from typing import Any

from dsexplore._internal.torch_internals.modules import TRANSFORMERS_FLASH_CHECK, TRANSFORMERS_HAS_FLASH
from dsexplore._internal.torch_internals.names import TorchName
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch

_VERSION = 2
"""The version of flash attention whose stand-in has all names that transformers imports."""


def _is_available(original: Callable[..., bool], _parts: Parts) -> Callable[..., bool]:
    """Wrap transformers' check for the package to return True if it is missing, as there is a stand-in."""
    return lambda *args, **kwargs: _is_missing() or original(*args, **kwargs)


def _accept_missing(original: Callable[..., None], _parts: Parts) -> Callable[..., None]:
    """Wrap the check of a model's attention to accept flash attention if its package is missing."""

    @wraps(original)
    def check(self: Any, flash_attn_version: int, *args: Any, **kwargs: Any) -> None:
        if flash_attn_version != _VERSION or not _is_missing():
            original(self, flash_attn_version, *args, **kwargs)

    return check


def _is_missing() -> bool:
    """Return True if the package is not installed, whether or not its stand-in has been imported."""
    return PathFinder.find_spec("flash_attn") is None


PATCHES: tuple[Entry, ...] = (
    Patch(
        TRANSFORMERS_HAS_FLASH,
        "it looks for an installed package",
        _is_available,
        when="cuda traffic",
    ),
    Patch(
        TRANSFORMERS_FLASH_CHECK,
        "it refuses a model whose kernels are not installed",
        _accept_missing,
        when="cuda traffic",
    ),
    Patch(
        TorchName("transformers.utils.import_utils:is_fake_tensor"),
        "it makes a mask of every token on fake tensors",
        lambda _original, _parts: lambda x: False,
        when="fake",
        by_code=True,
    ),
)
