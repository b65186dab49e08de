"""``tensor.data = other`` on fake tensors: what is known of the values of the other tensor goes with its data.

Measured on torch 2.13, a fake tensor of a single number, as ``torch.tensor(0.5)`` makes it, carries the number itself.
It keeps that when its data is replaced, as by ``module.bfloat16()``: ``detach`` then returns the old number in the old
dtype, and DDP sends it so.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.fake.known_values import noted, set_noted


def patch_data(patches: Patches) -> None:
    """Make fake tensors drop what was known of their values when they get other data."""
    data: Any = torch.Tensor.data

    def set_data(tensor: FakeTensor, value: torch.Tensor) -> None:
        data.__set__(tensor, value)
        tensor.constant = value.constant if isinstance(value, FakeTensor) else None
        if tensor.constant is not None:  # a write to one of the two is one to the other
            tensor.fake_mode.fake_tensor_converter.add_constant_storage_mapping(tensor)
        set_noted(tensor, *noted(value))

    patches.attribute(FakeTensor, "data", property(data.__get__, set_data))
