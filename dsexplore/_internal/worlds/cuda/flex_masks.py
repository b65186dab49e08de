"""Block masks of FlexAttention on a GPU that is not there: they are on the device that they are made for.

A block mask is computed under ``torch.func.vmap``, whose results carry no device.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from dsexplore._internal.torch_internals.cuda import CREATE_BLOCK_MASK
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch
from dsexplore._internal.worlds.cuda.device_marks import place
from dsexplore._internal.worlds.cuda.function_mode import StandInMode


def _place_mask(original: Callable[..., Any], parts: Parts) -> Callable[..., Any]:
    mode, arguments = parts[StandInMode], signature(original)

    def create_block_mask(*args: Any, **kwargs: Any) -> Any:
        mask = original(*args, **kwargs)
        named = arguments.bind(*args, **kwargs).arguments.get("device")
        place([*vars(mask).values()], mode.read("cuda" if named is None else named))
        return mask

    return create_block_mask


PATCHES: tuple[Entry, ...] = (
    Patch(
        CREATE_BLOCK_MASK,
        "its tensors carry no device",
        _place_mask,
        when="cuda device",
        by_code=True,
        on_import=True,
    ),
)
