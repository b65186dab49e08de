"""Optimizers on a simulated GPU: torch's loops over whole lists of parameters, as on a real one.

Where it is told neither ``foreach`` nor ``fused``, ``torch.optim`` updates the parameters of a GPU with
``torch._foreach_*`` ops, and those of a CPU one after another. The first needs room for intermediate results of all
parameters at once, as large as the parameters. Fake tensors are of a class that torch does not expect there, and count
as tensors here. Of a list in which DTensors and plain tensors are mixed, these ops end in an error of torch; here such
parameters are updated one after another, and a remark says what a GPU would do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.optim.optimizer as optimizers
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from torch.utils._foreach_utils import _get_foreach_kernels_supported_devices

from dsexplore.torch_internals.patches import Patches
from dsexplore.worlds.remarks import Remarks

MIXED = (
    "some parameters of this optimizer are DTensors and some are plain tensors: on GPUs torch.optim updates them with "
    "_foreach ops, which refuse such a mixture; foreach=False makes it update them one by one there too, as here"
)


def patch_optimizers(patches: Patches, remarks: Remarks) -> None:
    """``torch.optim`` treats parameters on a CPU, and fake ones, as those of a GPU."""
    patches.function(_get_foreach_kernels_supported_devices, _and_cpu)
    types = optimizers._foreach_supported_types
    patches.attribute(optimizers, "_foreach_supported_types", [*types, FakeTensor])
    patches.function(optimizers._default_to_fused_or_foreach, partial(_unless_mixed, remarks))


def _and_cpu(original: Callable[[], list[str]]) -> Callable[[], list[str]]:
    return lambda: [*original(), "cpu"]


def _unless_mixed(remarks: Remarks, original: Callable[..., tuple[bool, bool]]) -> Callable[..., tuple[bool, bool]]:
    def choose(params: Sequence[torch.Tensor], *args: Any, **kwargs: Any) -> tuple[bool, bool]:
        fused, foreach = original(params, *args, **kwargs)
        if foreach and len({isinstance(param, DTensor) for param in params}) > 1:
            remarks.say(MIXED)
            return fused, False
        return fused, foreach

    return choose
