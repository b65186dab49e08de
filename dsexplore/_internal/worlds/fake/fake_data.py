"""``tensor.data = other`` on fake tensors: the constant that a tensor carries is that of its new data.

Measured on torch 2.13, a fake tensor of a single number, as ``torch.tensor(0.5)`` makes it, carries the number itself.
It keeps that when its data is replaced, as by ``module.bfloat16()``: ``detach`` then returns the old number in the old
dtype, and DDP sends it so.
"""

from __future__ import annotations

from typing import Any

import torch

from dsexplore._internal.torch_internals.fake_tensors import FAKE_DATA, share_constant
from dsexplore._internal.torch_internals.patches import Entry, Parts, Patch


def _follow_data(data: Any, _parts: Parts) -> property:
    def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
        data.__set__(tensor, value)
        share_constant(tensor, value)

    return property(data.__get__, set_data)


PATCHES: tuple[Entry, ...] = (
    Patch(FAKE_DATA, "it keeps the constant of the data that was replaced", _follow_data, when="fake"),
)
