"""Block masks of FlexAttention on a GPU that is not there: they are on the device that they are made for.

A block mask is computed under ``torch.func.vmap``, whose results carry no mark.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from types import ModuleType
from typing import Any

from torch import Tensor

from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.cuda.device_marks import mark
from dsexplore.worlds.cuda.function_mode import StandInMode


def patch_block_masks(mode: StandInMode, patches: Patches, module: ModuleType) -> None:
    """Block masks of ``torch.nn.attention.flex_attention`` are on the GPU that they are made for, from now on.

    Args:
        mode: reads the device that a mask is made for.
        patches: where the changes are kept.
        module: that module.
    """
    parameters = signature(module.create_block_mask)

    def build(original: Callable[..., Any]) -> Callable[..., Any]:
        def create_block_mask(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            given = parameters.bind(*args, **kwargs).arguments.get("device")
            device = mode.read("cuda" if given is None else given)
            for value in vars(made).values():
                if isinstance(value, Tensor):
                    mark(value, device)
            return made

        return create_block_mask

    patches.function(module.create_block_mask, build)
