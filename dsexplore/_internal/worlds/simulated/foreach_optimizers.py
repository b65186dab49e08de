"""Foreach implementations of ``torch.optim`` on a simulated GPU, as on a real one.

Without ``foreach`` and ``fused``, ``torch.optim`` updates parameters on a GPU with ``torch._foreach_*`` ops, and
parameters on a CPU one after another. The foreach ops need memory for intermediate results of all parameters at once.
torch does not use them for fake tensors; here it does. They raise an error for a list that mixes DTensors and plain
tensors; here such parameters are updated one after another, and a remark says what a GPU would do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from dsexplore._internal.torch_internals import optimizers
from dsexplore._internal.torch_internals.fake_tensors import FakeTensor
from dsexplore._internal.torch_internals.patches import Parts, Patch
from dsexplore._internal.worlds.remarks import Remarks

MIXED = (
    "some parameters of this optimizer are DTensors and some are plain tensors: on GPUs torch.optim updates them with "
    "_foreach ops, which refuse such a mixture; foreach=False makes it update them one by one there too, as here"
)


def _add_cpu(original: Callable[[], list[str]], _parts: Parts) -> Callable[[], list[str]]:
    """Wrap the list of device types whose optimizers use ``foreach`` by default, to include the CPU."""
    return lambda: [*original(), "cpu"]


def _add_fake_tensors(original: list[type], _parts: Parts) -> list[type]:
    """Replace the list of tensor classes for which optimizers use ``foreach`` by default, to include fake tensors."""
    return [*original, FakeTensor]


def _choose_unless_mixed(original: Callable[..., tuple[bool, bool]], parts: Parts) -> Callable[..., tuple[bool, bool]]:
    """Wrap torch's choice of fused and foreach to choose neither for a mixed list, with a remark."""
    remarks = parts[Remarks]

    def choose(params: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> tuple[bool, bool]:
        fused, foreach = original(params, *args, **kwargs)
        if foreach and len({isinstance(param, DTensor) for param in params}) > 1:
            remarks.say(MIXED)
            return fused, False
        return fused, foreach

    return choose


PATCHES = (
    Patch(
        optimizers.DEVICES_OF_LISTS,
        "it excludes the CPU, which stands in for a GPU",
        _add_cpu,
        when="cuda traffic",
        by_code=True,
    ),
    Patch(optimizers.TYPES_OF_LISTS, "it does not list fake tensors", _add_fake_tensors, when="cuda traffic"),
    Patch(
        optimizers.CHOOSE_LISTS,
        "the ops refuse lists that mix DTensors and plain tensors",
        _choose_unless_mixed,
        when="cuda traffic",
        by_code=True,
    ),
)
